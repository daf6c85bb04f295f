// runtime/engines/engine.h — the interface of an engine: a call's workspace, running a call, and the story of its
// kernels
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/choose/kind.h"
#include "codegen/isa.h"
#include "runtime/engines/call.h"
#include "runtime/machine/progress.h"
#include "runtime/machine/watch/watch.h"
#include <attune/executor.h>

namespace attune::runtime {

/// Seconds spent in the stages of a call on the host, in order.
struct Stages {
  double visits = 0;  ///< finding which tiles to visit
  double pack = 0;    ///< packing keys and values for products
  double attend = 0;  ///< the rest
};

/// The resources of a call in addition to its tensors. Every member is optional.
struct Means {
  std::span<std::byte> workspace{};  ///< empty: the engine allocates for the length of the call
  Used* used = nullptr;              ///< for the engine to fill in
  // On the host:
  std::optional<codegen::Isa> isa{};  ///< the target of the CPU's kernels; none: cpu::isa()
  Executor executor{};
  Progress progress{};
  Stages* stages = nullptr;
  // On a device:
  void* stream = nullptr;                           ///< a CUstream; null: the default one
  const codegen::Preference* preference = nullptr;  ///< null: the choice of attune tune, if there is one
  const detail::DeviceCover* cover = nullptr;       ///< null: the call makes its own lists, if it needs lists
  int blocks = 0;  ///< upper bound on the blocks of a persistent kernel; 0: as many as SMs hold
  /// Bytes of dS that a backward keeps in its workspace at a time, unless a single tile of keys has more.
  std::int64_t ds_bytes = std::int64_t{1} << 30;
};

/// The kernel that computes a call, and the reasons against other kernels.
struct KernelStory {
  codegen::Variant variant;
  std::string kernel;              ///< a description, with its requirements
  std::vector<std::string> notes;  ///< the origin of the choice, and the reasons against other kernels
  int registers = 0, spilled = 0, shared_bytes = 0;
  std::string flaw;  ///< a defect of the compiled kernel (it spills, a warning); or empty
};

/// One of two functions of a call, by its direction.
template <auto forward, auto backward>
inline constexpr auto by_direction = [](const Call& call, const Means& means) {
  return call.is_forward() ? forward(call, means) : backward(call, means);
};

struct Engine {
  /// Bytes of working memory of a call, on the engine's device. Compiles and loads its kernels.
  std::size_t (*workspace)(const Call& call, const Means& means);
  /// Returns once the call is computed, or is enqueued on its stream.
  void (*run)(const Call& call, const Means& means);
  /// The kernels that visit pairs, in the order of their launches. Null: the engine has no choice of kernels.
  std::vector<KernelStory> (*story)(const Call& call, const Means& means);
};

}  // namespace attune::runtime

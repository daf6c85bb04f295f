// runtime/engines/engine.h — what an engine is: it says how much memory a call works in, runs it, and tells its kernels
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/isa.h"
#include "codegen/variant.h"
#include "runtime/engines/call.h"
#include "runtime/machine/progress.h"
#include "runtime/machine/watch/watch.h"
#include <attune/executor.h>

namespace attune::runtime {

/// Seconds spent in the stages of a call on the host, one after the other.
struct Stages {
  double visits = 0;  ///< finding which tiles to visit
  double pack = 0;    ///< packing keys and values for products
  double attend = 0;  ///< the rest
};

/// What a call works with besides its tensors. Every member may be left out.
struct Means {
  std::span<std::byte> workspace{};  ///< empty: the engine allocates for the length of the call
  Used* used = nullptr;              ///< for the engine to fill in
  // On the host:
  std::optional<codegen::Isa> isa{};  ///< that the CPU's kernels are compiled for; none: cpu::isa()
  Executor executor{};
  Progress progress{};
  Stages* stages = nullptr;
  // On a device:
  void* stream = nullptr;                           ///< a CUstream; null: the default one
  const codegen::Preference* preference = nullptr;  ///< null: as this machine was tuned
  const detail::DeviceCover* cover = nullptr;       ///< null: the call lists its own tiles, where it needs lists
  int blocks = 0;  ///< at most so many of a kernel whose blocks stay; 0: one for each multiprocessor
};

/// A kernel that takes a call, and why not others.
struct KernelStory {
  codegen::Variant variant;
  std::string kernel;              ///< in words, with what it needs
  std::vector<std::string> notes;  ///< where the choice came from, and why other kernels were not taken
  int registers = 0, spilled = 0, shared_bytes = 0;
  std::string flaw;  ///< what is wrong with the compiled kernel (it spills, a warning); or empty
};

struct Engine {
  /// Bytes that a call works in, of the engine's memory. Compiles and loads its kernels.
  std::size_t (*workspace)(const Call& call, const Means& means);
  /// Returns once the call is computed, or is on its stream.
  void (*run)(const Call& call, const Means& means);
  /// The kernels that walk pairs, in the order of their launches. Null: the engine has none to choose from.
  std::vector<KernelStory> (*story)(const Call& call, const Means& means);
};

}  // namespace attune::runtime

// runtime/engines/cuda/launches.h — the work that a call enqueues on its stream: copies, cleared counters and kernels,
// in order
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "codegen/ceil_div.h"
#include "codegen/choose/companion.h"
#include "codegen/cuda/contract/args.cuh"
#include "runtime/engines/call.h"
#include "runtime/engines/cuda/kernels/kernels.h"
#include "runtime/engines/cuda/query_tiles.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

struct Launch {
  const Kernel* kernel = nullptr;
  codegen::Grid grid{1, 1, 1};
  int threads = 0;
  int shared_bytes = 0;       ///< dynamic, of a block
  void* arguments = nullptr;  ///< the kernel's own struct, which must live until put() returns
  unsigned cluster = 1;       ///< blocks per cluster
  bool early = false;         ///< true: may start before the previous step has ended; the kernel waits for that itself
};

/// Built once per call, without heap memory unless something is sent.
class Launches {
 public:
  Launches() = default;
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  /// A struct for a kernel, all zeros, which lives as long as this; `bytes`: of one that begins with Args.
  template <class Args>
  Args& make(std::size_t bytes = sizeof(Args)) {
    const std::size_t at = std::exchange(used_, used_ + round_up(bytes, alignof(TensorMap)));
    if (used_ > structs_.size()) refuse_more();
    return *std::construct_at(reinterpret_cast<Args*>(structs_.data() + at));
  }

  /// Copies ints from the host. The driver reads them before put() returns; a graph would not keep them.
  void send(int* to, std::vector<int> from);
  /// Sets `count` words, e.g. a counter, to 0.
  void clear(unsigned* first, std::size_t count = 1) {
    if (count > 0) add({.of = Step::Of::clear, .to = first, .count = count});
  }
  /// Adds a kernel, unless it has no blocks.
  void launch(const Launch& one) {
    if (one.grid[0] > 0 && one.grid[1] > 0 && one.grid[2] > 0) add({.of = Step::Of::launch, .launch = one});
  }
  /// Adds a companion of the kernel.
  void companion(const LoadedKernel& kernel, const codegen::Companion& what, const codegen::LaunchCall& call,
                 void* arguments);
  /// Adds the companions that get the kernel's struct and run before it.
  void before(const LoadedKernel& kernel, const codegen::LaunchCall& call, void* arguments);
  void kernel(const LoadedKernel& kernel, const codegen::LaunchCall& call, void* arguments, bool early,
              unsigned cluster = 1);
  /// The same that run after the kernel.
  void after(const LoadedKernel& kernel, const codegen::LaunchCall& call, void* arguments);

  /// Enqueues every step on the stream, in the current context, and forgets it. Each kernel takes its own struct, then
  /// the user's bytes.
  void put(cu::Stream stream, std::span<std::byte> user);

 private:
  struct Step {
    enum class Of { send, clear, launch } of;
    void* to = nullptr;
    std::size_t count = 0;
    Launch launch{};
  };
  /// Not initialised before a step is written to it: steps that a call does not have cost nothing.
  union Slot {
    Step step;
    Slot() {}
  };
  void add(const Step& step) {
    if (count_ == most) refuse_more();
    std::construct_at(&slots_[count_++].step, step);
  }
  [[noreturn]] static void refuse_more();
  void companions(const LoadedKernel& kernel, codegen::Companion::When when, const codegen::LaunchCall& call,
                  void* arguments);

  // A packed backward has the most steps: starts, captured sums, those along diagonals, counters, sums of dq if they
  // are added in any order, rows, a table, delta, the kernel, and five kernels after it. One that stores dS has neither
  // starts nor diagonals.
  static constexpr std::size_t most = 14;
  std::array<Slot, most> slots_;
  std::size_t count_ = 0, used_ = 0;
  std::vector<int> sent_;  ///< the ints of the one step that sends
  // Not initialised either. A backward in parts has the most: three of its own struct, one for each kernel.
  alignas(TensorMap) std::array<std::byte, 8192> structs_;
};

/// The user's struct, laid out as in the kernel's source.
std::vector<std::byte> user_of(const Call& of, const LoadedKernel& kernel);

/// Pointers on the device; null if sequences are not packed, or if the order is not known.
struct Starts {
  const int *q = nullptr, *kv = nullptr, *order = nullptr;
};

/// Of a packed call. Starts that the host knows, and the order of tiles of `queries` queries that follows from them,
/// are sent to the workspace; without `out` that is only taken. `masked`: true if the mask may remove pairs.
Starts starts_of(Workspace& space, Launches* out, cu::Stream stream, const compiler::Problem& p,
                 const QueryTiles& tiles, int queries, bool masked, const Tensor& cu_q, const Tensor& cu_kv);

}  // namespace attune::runtime::cuda

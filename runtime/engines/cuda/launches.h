// runtime/engines/cuda/launches.h — the work that a call enqueues on its stream: copies, cleared counters and kernels,
// in order
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "codegen/companion.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/cover_args.cuh"
#include "runtime/engines/call.h"
#include "runtime/engines/cuda/kernels.h"

namespace attune::runtime::cuda {

struct CoverLists;

struct Launch {
  const Kernel* kernel = nullptr;
  std::array<unsigned, 3> grid{1, 1, 1};
  int threads = 0;
  int shared_bytes = 0;       ///< dynamic, of a block
  void* arguments = nullptr;  ///< the kernel's own struct, which must live until put() returns
  unsigned cluster = 1;       ///< blocks per cluster
  bool early = false;         ///< true: may start before the previous step has ended; the kernel waits for that itself
};

/// Built once per call, without heap memory unless something is sent.
class Launches {
 public:
  /// Copies ints from the host. The driver reads them before put() returns; a graph would not keep them.
  void send(int* to, std::vector<int> from);
  /// Sets `count` words, e.g. a counter, to 0.
  void clear(unsigned* first, std::size_t count = 1) { add({.of = Step::Of::clear, .to = first, .count = count}); }
  void launch(const Launch& one) { add({.of = Step::Of::launch, .launch = one}); }

  /// Enqueues every step on the stream, in the current context. Each kernel takes its own struct, then the user's
  /// bytes.
  void put(cu::Stream stream, std::span<std::byte> user) const;

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

  // A backward has the most steps: starts, captured sums, diagonals or stored dS, rows, counters, sums of dq if they
  // are added in any order, a table, the kernel and three after it.
  static constexpr std::size_t most = 11;
  std::array<Slot, most> slots_;
  std::size_t count_ = 0;
  std::vector<int> sent_;  ///< the ints of the one step that sends
};

/// The description of one launch and of its companions by a family of kernels (args_*.cpp). The structs must live until
/// everything is enqueued.
struct Walk {
  const LoadedKernel& kernel;
  codegen::LaunchCall call;
  void* arguments = nullptr;
  unsigned cluster = 1;
  bool early = false;                 ///< true if it may start while the previous launch drains
  bool shares_tiles = true;           ///< true if blocks share tiles of queries (split-KV)
  bool gives_dq = true;               ///< true if the gradient of q is requested
  bool sums_ds = true;                ///< false if stored dS has been summed already
  const CoverLists* lists = nullptr;  ///< lists to write before the kernel runs
  // Structs of companions that do not use the kernel's own struct; null: these companions are not launched.
  CoverArgs* cover = nullptr;
  GatherArgs* gather = nullptr;
  TransposeArgs* transpose = nullptr;
  SplitArgs* split = nullptr;
  SplitRowsArgs* split_rows = nullptr;
  ClearArgs* clear = nullptr;
  // Words that are set to 0 right before the kernel, unless a companion does so.
  unsigned* cleared = nullptr;
  std::size_t cleared_count = 0;
  std::byte* own = nullptr;  ///< workspace of a family that has its own struct
};

/// Adds the companions that run before the kernel, and the kernel itself.
void put_kernel(Launches& launches, const Walk& walk);
/// Adds one of its companions that get the kernel's own struct.
void put_companion(Launches& launches, const Walk& walk, const codegen::Companion& what);
/// Adds the companions that run after all kernels of the call.
void put_after(Launches& launches, const Walk& walk);

/// The user's struct, laid out as in the kernel's source.
std::vector<std::byte> user_of(const Call& of, const LoadedKernel& kernel);
/// Adds the kernel, with these arguments, and all of its companions, and enqueues every step on the stream.
void put_call(Launches& launches, Walk& walk, const Call& of, std::span<std::byte> arguments, cu::Stream stream);

}  // namespace attune::runtime::cuda

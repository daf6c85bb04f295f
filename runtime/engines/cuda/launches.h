// runtime/engines/cuda/launches.h — what a call puts on its stream: copies, cleared counters and kernels, in order
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "codegen/companion.h"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/cover_args.cuh"
#include "runtime/engines/cuda/kernels.h"

namespace attune::runtime::cuda {

struct CoverLists;

struct Launch {
  const Kernel* kernel = nullptr;
  std::array<unsigned, 3> grid{1, 1, 1};
  int threads = 0;
  int shared_bytes = 0;       ///< dynamic, of a block
  void* arguments = nullptr;  ///< the kernel's own struct, which must live until put() returns
  unsigned cluster = 1;       ///< so many neighbouring blocks form a cluster
  bool early = false;         ///< may start before the step before it has ended; the kernel waits for that itself
};

/// Built once a call, without memory of the heap unless something is sent.
class Launches {
 public:
  /// Sends ints of the host. The driver copies them before put() returns; a graph would not keep them.
  void send(int* to, std::vector<int> from);
  /// Sets a counter, or so many words, to 0.
  void clear(unsigned* first, std::size_t count = 1) { add({.of = Step::Of::clear, .to = first, .count = count}); }
  void launch(const Launch& one) { add({.of = Step::Of::launch, .launch = one}); }

  /// Puts every step on the stream, in the current context. Each kernel takes its own struct, then the user's bytes.
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

  // A backward's: starts, captured sums and diagonals, rows, counters, a table, the kernel and three behind it.
  static constexpr std::size_t most = 10;
  std::array<Slot, most> slots_;
  std::size_t count_ = 0;
  std::vector<int> sent_;  ///< of the one step that sends
};

/// What a family of kernels (args_*.cpp) says of one launch and of those around it. Structs live until all is put.
struct Walk {
  const LoadedKernel& kernel;
  codegen::LaunchCall call;
  void* arguments = nullptr;
  unsigned cluster = 1;
  bool early = false;                 ///< starts as the launch before it drains
  bool shares_tiles = true;           ///< blocks share tiles of queries
  bool gives_dq = true;               ///< the gradient of q is asked for
  const CoverLists* lists = nullptr;  ///< to be written before
  // Structs of companions that do not get the kernel's; null: these companions are not launched.
  CoverArgs* cover = nullptr;
  TransposeArgs* transpose = nullptr;
  ClearArgs* clear = nullptr;
  // Words set to 0 right before the kernel, where no companion does.
  unsigned* cleared = nullptr;
  std::size_t cleared_count = 0;
};

/// The companions before it, and the kernel itself.
void put_kernel(Launches& launches, const Walk& walk);
/// The companions that follow, once all kernels of the call are put.
void put_after(Launches& launches, const Walk& walk);

}  // namespace attune::runtime::cuda

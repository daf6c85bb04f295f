// runtime/engines/cuda/call.h — a forward on a device: its kernel, and its memory, laid out once
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/query_tiles.h"
#include "runtime/engines/cuda/starts.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// Where the workspace is, and where sequences start.
struct Placed {
  std::byte* memory;
  Starts starts;
};

/// A forward with its kernel. What a family of kernels alone needs is in args_*.cpp: room, blocks, a struct.
struct ForwardRun {
  const Call& of;
  const Forward& call;
  const compiler::Problem& p;
  const Means& means;
  const Facts& device;
  Held<LoadedKernel> kernel;
  QueryTiling tiling;
  QueryTiles tiles;
  WorkspaceLayout space;
  StartsRoom starts;
  Room<unsigned> next{};  ///< the counter that tiles are taken from, where there are more of them than blocks
  Room<std::byte> transposed{};
  Room<float> parts{};  ///< of tiles that blocks share, and how many of these have written theirs
  Room<unsigned> arrivals{};
  Room<CutTile> cut{};
  int split_steps = 0, splits = 0;  ///< as Further has them
  Room<int> own_lists{};
  CoverLists lists{};
  Room<std::byte> own{};  ///< of a kernel with a struct of its own

  ForwardRun(const Facts& on, const Call& call_of, const Means& with);
  std::size_t bytes() const { return space.bytes(); }
  /// Fills in the memory, and puts all launches on the stream.
  void put(std::byte* memory);

  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  /// Blocks of a kernel whose blocks stay.
  int most_blocks() const { return means.blocks ? std::min(means.blocks, device.sms) : device.sms; }
  Walk walk_of(std::int64_t blocks) const {
    return {.kernel = *kernel, .call = {.problem = p, .plan = plan(), .sms = device.sms, .blocks = blocks}};
  }
  /// Puts the walk, whose kernel gets these arguments and what only some calls have besides.
  template <class Args>
  void put_walk(Launches& launches, Walk& walk, Args& args, std::byte* memory) {
    if (!plan().further()) return put_walk(launches, walk, &args, sizeof args, memory);
    Further<Args> all{args, {}, {}, {}, split_steps, splits};
    if (call.o_before.given()) {
      all.o_before = strided(call.o_before, p.q.layout);
      all.lse_before = rows(call.lse_before, p.q.layout);
      all.o_before_type = stored(call.o_before.dtype);
    }
    put_walk(launches, walk, &all, sizeof all, memory);
  }

 private:
  void put_walk(Launches& launches, Walk& walk, void* args, std::size_t bytes, std::byte* memory);
};

/// Refuses outputs that this engine cannot write, and results to merge that it cannot read.
void check_outputs(const Forward& call);
/// Without a query there is nothing to compute.
inline bool is_empty(const compiler::Problem& p) { return p.batch == 0 || p.q_heads == 0 || p.q.length == 0; }

/// The user's struct, as the kernel's source has it.
std::vector<std::byte> user_of(const Call& of, const LoadedKernel& kernel);

// ---- what a family of kernels needs of a call, by ArgsKind ----------------------------------------------------------

// forward and per_entry: args_forward.cpp.
void take_forward(ForwardRun& run);
void put_forward(ForwardRun& run, Launches& launches, const Placed& at);
// decode: args_decode.cpp.
void take_decode(ForwardRun& run);
void put_decode(ForwardRun& run, Launches& launches, const Placed& at);
DecodeArgs decode_args(const ForwardRun& run, const Placed& at);
// mla: args_mla.cpp.
void take_mla(ForwardRun& run);
void put_mla(ForwardRun& run, Launches& launches, const Placed& at);

/// Into how many parts it is worth to cut a tile of queries: each has some keys.
inline std::int64_t worthwhile_parts(const compiler::Problem& p) {
  constexpr std::int64_t least_keys = 64;
  return std::max<std::int64_t>(p.kv.length / least_keys, 1);
}
/// The number of equal parts into which so many blocks cut each of these tiles of queries; 0 where only the device
/// knows. Whole tiles, one part each, need no counters and no merge.
int known_parts(const ForwardRun& run, std::int64_t tiles, std::int64_t sharers);
/// Room for the parts of tiles, of so many rows each, that blocks share.
void take_parts(ForwardRun& run, std::int64_t rows, std::int64_t blocks);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/call.h — a forward on a device: its kernel, and its memory, laid out once
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/lists.h"
#include "runtime/engines/cuda/operands.h"
#include "runtime/engines/cuda/query_tiles.h"
#include "runtime/engines/cuda/starts.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// The addresses of the workspace and of the starts of sequences.
struct Placed {
  std::byte* memory;
  Starts starts;
};

/// A forward with its kernel. The code for one family of kernels (workspace, number of blocks, argument struct) is in
/// args_*.cpp.
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
  Region<unsigned> next{};  ///< the tile scheduler's counter, if there are more tiles than blocks
  Region<std::byte> gathered_k{}, gathered_v{}, transposed{};
  Region<float> split_k{}, split_v{};
  Region<float> parts{};  ///< partial results of shared tiles; `arrivals` counts the blocks that have written theirs
  Region<unsigned> arrivals{};
  Region<CutTile> cut{};
  int split_steps = 0, splits = 0;  ///< as in Further
  int key_parts = 1;                ///< of a tile of queries, each of them an item: KeyParts
  Region<int> own_lists{};
  CoverLists lists{};
  Region<std::byte> own{};  ///< workspace of kernel families that have their own struct

  ForwardRun(const Facts& on, const Call& call_of, const Means& with);
  std::size_t bytes() const { return space.bytes(); }
  /// Assigns the memory and enqueues all launches on the stream.
  void put(std::byte* memory);

  const codegen::KernelPlan& plan() const { return kernel->choice.plan; }
  /// The number of blocks of a persistent kernel.
  int most_blocks() const {
    const int most = device.sms * kernel->choice.blocks_of_sm;
    return means.blocks ? std::min(means.blocks, most) : most;
  }
  Entries entries(const Starts& of_call) const {
    Entries out = entries_of(p, of_call.q, of_call.kv);
    out.kv_lens = numbers(call.kv_len);
    out.q_offsets = numbers(call.q_offsets);
    out.page_table = page_table(call.page_table, call.k);
    lists.put(out);
    return out;
  }
  Walk walk_of(std::int64_t blocks) const {
    return {.kernel = *kernel, .call = {.problem = p, .plan = plan(), .sms = device.sms, .blocks = blocks}};
  }
  /// Enqueues the kernel with these arguments and with the arguments that only some calls have.
  template <class Args>
  void put_walk(Launches& launches, Walk& walk, Args& args, std::byte* memory) {
    walk.own = own.in(memory);
    const auto stream = static_cast<cu::Stream>(means.stream);
    if (!plan().further()) return put_call(launches, walk, of, std::as_writable_bytes(std::span(&args, 1)), stream);
    InParts<Args> all{{args, {}, {}, {}, split_steps, splits}, parts_in(memory)};
    if (call.o_before.given()) {
      all.o_before = strided(call.o_before, p.q.layout);
      all.lse_before = rows(call.lse_before, p.q.layout);
      all.o_before_type = stored(call.o_before.dtype);
    }
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(&all, 1));
    put_call(launches, walk, of, plan().tile.in_parts ? bytes : bytes.first(sizeof(Further<Args>)), stream);
  }
  KeyParts parts_in(std::byte* memory) const;
};

/// Refuses outputs that this engine cannot write, and o_before and lse_before that it cannot read.
void check_outputs(const Forward& call);
/// True if there is no query, and so nothing to compute.
inline bool is_empty(const compiler::Problem& p) { return p.batch == 0 || p.q_heads == 0 || p.q.length == 0; }

// ---- what a family of kernels needs of a call, by ArgsKind ----------------------------------------------------------

// forward: args_forward.cpp.
void take_forward(ForwardRun& run);
void put_forward(ForwardRun& run, Launches& launches, const Placed& at);
// decode: args_decode.cpp.
void take_decode(ForwardRun& run);
void put_decode(ForwardRun& run, Launches& launches, const Placed& at);
DecodeArgs decode_args(const ForwardRun& run, const Placed& at);
// mla: args_mla.cpp.
void take_mla(ForwardRun& run);
void put_mla(ForwardRun& run, Launches& launches, const Placed& at);

/// The largest useful number of parts (split-KV) of a tile of queries: each part has at least `least_keys` keys.
inline std::int64_t worthwhile_parts(const compiler::Problem& p) {
  constexpr std::int64_t least_keys = 64;
  return std::max<std::int64_t>(p.kv.length / least_keys, 1);
}
/// The number of equal parts into which the blocks cut each of these tiles of queries; 0 if only the device knows it.
/// Tiles with one part need no counters and no merge.
int known_parts(const ForwardRun& run, std::int64_t tiles, std::int64_t sharers);
/// Takes workspace for the partial results of tiles that blocks share; a tile has `rows` rows.
void take_parts(ForwardRun& run, std::int64_t rows, std::int64_t blocks);

}  // namespace attune::runtime::cuda

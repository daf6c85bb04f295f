// runtime/engines/cuda/args_forward.cpp — the arguments of forward kernels without DecodeArgs: ForwardArgs
#include <limits>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/ceil_div.h"
#include "codegen/gpu_element.h"
#include "runtime/engines/cuda/call.h"
#include "runtime/engines/cuda/maps.h"

namespace attune::runtime::cuda {
namespace {

/// Tiles of queries, or parts of their keys.
std::int64_t items_of(const ForwardRun& run) { return run.tiles.count * run.key_parts; }

std::int64_t forward_blocks(const ForwardRun& run) {
  const std::int64_t blocks = run.plan().kernel->persistent ? std::min<std::int64_t>(items_of(run), run.most_blocks())
                                                            : run.tiles.count;
  if (blocks > std::numeric_limits<int>::max())
    throw Error("too-long", "the call has too many tiles of queries for one launch", {},
                fmt::format("there are {} of {} queries each, and a grid has fewer than 2^31 blocks", blocks,
                            run.tiling.queries),
                "split the call");
  return blocks;
}

// ---- transposed values

/// Rows of a tile, with 128 keys each. In a tile with more keys, the rows of the next 128 keys follow.
int transposed_rows(const codegen::Tile& tile) {
  return ceil_div(tile.n, codegen::gpu_element(DType::e4m3).chunk()) * tile.dv;
}
/// The tensor of all transposed values; memory may be null, as in WorkspaceLayout.
Tensor transposed(const ForwardRun& run, const std::byte* memory) {
  const std::int64_t rows = codegen::transposed_tiles(run.p, run.plan()) * transposed_rows(run.plan().tile);
  return {memory,
          DType::e4m3,
          {codegen::transposed_batch(run.p), run.p.kv_heads, rows, codegen::gpu_element(DType::e4m3).chunk()}};
}
TransposeArgs transpose_args(const ForwardRun& run, const Placed& at) {
  const codegen::Tile& tile = run.plan().tile;
  const bool wide = tile.dv > codegen::gpu_element(DType::e4m3).chunk();
  return {
      .from = boxes_of(run.call.v, tile.n),
      .to = boxes_of(transposed(run, run.transposed.in(at.memory)), wide ? transposed_box_rows : transposed_rows(tile)),
      .heads = static_cast<int>(run.p.kv_heads),
      .tiles = static_cast<int>(codegen::transposed_tiles(run.p, run.plan())),
      .batch = static_cast<int>(run.p.batch),
      .starts = at.starts.kv};
}

// ---- keys and values copied out of their pages

/// The tensor that a pool is copied to; memory may be null.
Tensor gathered(const ForwardRun& run, const Tensor& pool, const std::byte* memory) {
  return {memory, pool.dtype, {run.p.batch, run.p.kv_heads, run.p.kv.length, pool.shape[3]}};
}
GatherArgs gather_args(const ForwardRun& run, const Placed& at) {
  const auto units = [](const Tensor& t) {
    return static_cast<int>(t.shape[3] * static_cast<std::int64_t>(size_of(t.dtype)) / 16);
  };
  GatherArgs args{};
  static_cast<Entries&>(args) = run.entries(at.starts);
  args.k = strided(run.call.k, run.p.kv.layout);
  args.v = strided(run.call.v, run.p.kv.layout);
  args.k_to = run.gathered_k.in(at.memory);
  args.v_to = run.gathered_v.in(at.memory);
  args.element = static_cast<int>(size_of(run.call.k.dtype));
  args.k_units = units(run.call.k);
  args.v_units = units(run.call.v);
  return args;
}

// ---- keys that blocks share

/// f32 that a row has in KeyParts::sums, for each part, and in KeyParts::rests.
constexpr int sums_of_row = 2, rests_of_row = 2;

void take_key_parts(ForwardRun& run) {
  const compiler::Problem& whole = run.of.whole ? *run.of.whole : run.p;
  run.key_parts = codegen::parts_of_keys(QueryTiles(run.tiling, whole).count, run.most_blocks(),
                                         ceil_div(whole.kv.length, run.plan().tile.n));
  run.parts = run.space.take<float>(codegen::all_rows(run.p) *
                                    (run.key_parts * (run.p.dv + sums_of_row) + rests_of_row));
}

// ---- split keys and values

/// Rows of 128 bytes in one part of a tile of keys that are `width` wide; or of its transposed values.
int split_rows(const codegen::Tile& tile, int width) {
  return tile.n * width / codegen::gpu_element(DType::f32).chunk();
}
/// The tensor of all split keys or values; memory may be null.
Tensor split(const ForwardRun& run, const float* memory, int width) {
  const codegen::Tile& tile = run.plan().tile;
  const std::int64_t rows = codegen::transposed_tiles(run.p, run.plan()) * tile.parts * split_rows(tile, width);
  return {memory,
          DType::f32,
          {codegen::transposed_batch(run.p), run.p.kv_heads, rows, codegen::gpu_element(DType::f32).chunk()}};
}
SplitArgs split_args(const ForwardRun& run, const Placed& at) {
  SplitArgs args{};
  static_cast<Entries&>(args) = run.entries(at.starts);
  args.k = strided(run.call.k, run.p.kv.layout);
  args.v = strided(run.call.v, run.p.kv.layout);
  args.k_to = run.split_k.in(at.memory);
  args.v_to = run.split_v.in(at.memory);
  args.heads = static_cast<int>(run.p.kv_heads);
  args.tiles = static_cast<int>(codegen::transposed_tiles(run.p, run.plan()));
  args.d = static_cast<int>(run.p.d);
  args.dv = static_cast<int>(run.p.dv);
  return args;
}

void put_maps(ForwardArgs& args, const ForwardRun& run, const Placed& at) {
  const auto& rows = run.kernel->choice.boxes;
  if (!rows) return;
  const codegen::Tile& tile = run.plan().tile;
  args.q_map = query_boxes(run.call.q, rows->q, tile.heads, run.p.group);
  args.o_map = query_boxes(run.call.o, rows->o, tile.heads, run.p.group);
  if (tile.parts > 0) {
    args.k_map = boxes_of(split(run, run.split_k.in(at.memory), tile.d), split_rows(tile, tile.d));
    args.v_map = boxes_of(split(run, run.split_v.in(at.memory), tile.dv), split_rows(tile, tile.dv));
    return;
  }
  if (tile.gathered) {
    args.k_map = boxes_of(gathered(run, run.call.k, run.gathered_k.in(at.memory)), rows->k);
    args.v_map = boxes_of(gathered(run, run.call.v, run.gathered_v.in(at.memory)), rows->v);
    return;
  }
  args.k_map = boxes_of(run.call.k, rows->k);
  args.v_map = tile.transposed ? boxes_of(transposed(run, run.transposed.in(at.memory)), transposed_rows(tile))
                               : boxes_of(run.call.v, rows->v);
}

ForwardArgs forward_args(const ForwardRun& run, const Placed& at) {
  const Forward& call = run.call;
  const compiler::Problem& p = run.p;
  ForwardArgs args{};
  static_cast<Entries&>(args) = run.entries(at.starts);
  put_maps(args, run, at);
  args.q = strided(call.q, p.q.layout);
  args.k = strided(call.k, p.kv.layout);
  args.v = strided(call.v, p.kv.layout);
  if (run.plan().tile.gathered) {
    args.k = strided(gathered(run, call.k, run.gathered_k.in(at.memory)), p.kv.layout);
    args.v = strided(gathered(run, call.v, run.gathered_v.in(at.memory)), p.kv.layout);
    args.page_table = {};
  }
  args.o = strided(call.o, p.q.layout);
  args.lse = rows(call.lse, p.q.layout);
  args.max = rows(call.max, p.q.layout);
  args.q_heads = static_cast<int>(p.q_heads);
  args.d = static_cast<int>(p.d);
  args.dv = static_cast<int>(p.dv);
  args.order = at.starts.order;
  args.order_count = static_cast<int>(run.tiles.order);
  args.section = section_of(run.tiles, p, run.device.l2_bytes, static_cast<std::int64_t>(size_of(call.k.dtype)));
  args.next = run.next.in(at.memory);
  return args;
}

}  // namespace

KeyParts ForwardRun::parts_in(std::byte* memory) const {
  if (!plan().tile.in_parts) return {};
  const std::int64_t rows = codegen::all_rows(p);
  float *const o = parts.in(memory), *const of_sums = o + key_parts * rows * p.dv;
  return {.count = key_parts,
          .positions = static_cast<int>(p.q.packed() ? p.q.total : p.q.length),
          .rows = rows,
          .o = o,
          .sums = of_sums,
          .rests = of_sums + key_parts * rows * sums_of_row,
          .o_type = stored(call.o.dtype)};
}

void take_forward(ForwardRun& run) {
  const codegen::Tile& tile = run.plan().tile;
  if (tile.in_parts) take_key_parts(run);
  if (items_of(run) > run.most_blocks() && run.kernel->choice.counts_tiles) run.next = run.space.take<unsigned>(1);
  if (tile.parts > 0) {
    run.split_k = run.space.take<float>(split(run, nullptr, tile.d).size());
    run.split_v = run.space.take<float>(split(run, nullptr, tile.dv).size());
  } else if (tile.gathered) {
    const auto room = [&](const Tensor& pool) {
      return run.space.take<std::byte>(gathered(run, pool, nullptr).size() *
                                       static_cast<std::int64_t>(size_of(pool.dtype)));
    };
    run.gathered_k = room(run.call.k);
    run.gathered_v = room(run.call.v);
  } else if (tile.transposed) {
    run.transposed = run.space.take<std::byte>(transposed(run, nullptr).size());
  }
}

void put_forward(ForwardRun& run, Launches& launches, const Placed& at) {
  const codegen::Tile& tile = run.plan().tile;
  const bool writes_lists = run.own_lists.count > 0, splits = tile.parts > 0, transposes = tile.transposed && !splits;
  unsigned* const next = run.next.in(at.memory);
  if (next && !writes_lists) launches.clear(next);
  CoverArgs cover{};
  GatherArgs gather{};
  TransposeArgs transpose{};
  SplitArgs split{};
  Walk walk = run.walk_of(forward_blocks(run));
  walk.early = (writes_lists || transposes || splits || tile.gathered) && run.plan().kernel->waits;
  walk.lists = &run.lists;
  if (writes_lists) {
    cover = cover_arguments(run.lists, run.entries(at.starts), next);
    walk.cover = &cover;
  }
  if (tile.gathered) {
    gather = gather_args(run, at);
    walk.gather = &gather;
  }
  if (transposes) {
    transpose = transpose_args(run, at);
    walk.transpose = &transpose;
  }
  if (splits) {
    split = split_args(run, at);
    walk.split = &split;
  }
  ForwardArgs args = forward_args(run, at);
  run.put_walk(launches, walk, args, at.memory);
}

}  // namespace attune::runtime::cuda

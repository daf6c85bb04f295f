// runtime/engines/cuda/args_decode.cpp — the arguments of decode kernels, whose blocks share the keys of a row
// (split-KV): DecodeArgs
#include "codegen/cuda/layout/equal_parts.cuh"
#include "runtime/engines/cuda/call.h"

namespace attune::runtime::cuda {
namespace {

std::int64_t decode_blocks(const ForwardRun& run) {
  return std::min<std::int64_t>(run.tiles.count * worthwhile_parts(run.p), run.most_blocks());
}

}  // namespace

void take_decode(ForwardRun& run) {
  const std::int64_t blocks = decode_blocks(run);
  take_parts(run, run.p.q.length * run.plan().tile.heads, blocks);
  run.arrivals = run.space.take<unsigned>(run.plan().spec.fixed_split ? run.p.batch * run.tiles.sets : blocks);
}

DecodeArgs decode_args(const ForwardRun& run, const Placed& at) {
  const Forward& call = run.call;
  const compiler::Problem& p = run.p;
  DecodeArgs args{};
  static_cast<Entries&>(args) = run.entries(at.starts);
  args.q = strided(call.q, p.q.layout);
  args.k = strided(call.k, p.kv.layout);
  args.v = strided(call.v, p.kv.layout);
  args.o = strided(call.o, p.q.layout);
  args.lse = rows(call.lse, p.q.layout);
  args.max = rows(call.max, p.q.layout);
  args.sets = static_cast<int>(run.tiles.sets);
  args.sets_of_group = static_cast<int>(run.tiles.group_sets);
  args.parts = run.parts.in(at.memory);
  args.arrivals = run.arrivals.in(at.memory);
  return args;
}

void put_decode(ForwardRun& run, Launches& launches, const Placed& at) {
  const codegen::Tile& tile = run.plan().tile;
  const bool clears = run.kernel->has(codegen::clear_arrivals);
  const std::int64_t tiles = run.p.batch * run.tiles.sets, blocks = decode_blocks(run);
  const int parts = known_parts(run, tiles, blocks);
  // Two blocks that share a tile are a cluster.
  const bool clusters = clears && parts == 2 && tile.clusters && tile.warps >= cluster_warps;
  CoverArgs cover{};
  ClearArgs arrivals{run.arrivals.in(at.memory), static_cast<int>(run.arrivals.count)};
  Walk walk = run.walk_of(clusters ? 2 * tiles : blocks);
  walk.cluster = clusters ? 2 : 1;
  walk.early = clears;
  walk.shares_tiles = parts != 1 && !clusters;
  walk.lists = &run.lists;
  walk.clear = &arrivals;
  if (run.own_lists.count > 0) {
    cover = cover_arguments(run.lists, run.entries(at.starts), nullptr);
    walk.cover = &cover;
  }
  if (!clears) {
    walk.cleared = arrivals.first;
    walk.cleared_count = static_cast<std::size_t>(arrivals.count);
  }
  DecodeArgs args = decode_args(run, at);
  args.paired = clusters;
  run.put_walk(launches, walk, args, at.memory);
}

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/args_mla.cpp — the arguments of MLA kernels, whose values are the first columns of keys: MlaArgs
#include "codegen/ceil_div.h"
#include "runtime/engines/cuda/call.h"
#include "runtime/engines/cuda/maps.h"

namespace attune::runtime::cuda {
namespace {

std::int64_t cluster_of(const ForwardRun& run) { return run.plan().tile.cluster; }

/// The number of sets per key head: a set is as many tiles of the head's queries as a cluster has blocks.
std::int64_t sets_of_group(const ForwardRun& run) {
  return ceil_div(run.tiles.group_sets * ceil_div(run.p.q.length, run.tiling.queries), cluster_of(run));
}
std::int64_t sets_of(const ForwardRun& run) { return run.p.kv_heads * sets_of_group(run); }

std::int64_t clusters_of(const ForwardRun& run) {
  return std::min<std::int64_t>(run.p.batch * sets_of(run) * worthwhile_parts(run.p),
                                std::max<std::int64_t>(run.most_blocks() / cluster_of(run), 1));
}

}  // namespace

void take_mla(ForwardRun& run) {
  const std::int64_t clusters = clusters_of(run);
  take_parts(run, run.plan().tile.m, clusters * cluster_of(run));
  run.cut = run.space.take<CutTile>(clusters);
}

void put_mla(ForwardRun& run, Launches& launches, const Placed& at) {
  const codegen::BoxRows& boxes = *run.kernel->choice.boxes;
  const std::int64_t clusters = clusters_of(run);
  MlaArgs args{decode_args(run, at), {}, {}, run.cut.in(at.memory), static_cast<int>(run.cut.count)};
  args.sets = static_cast<int>(sets_of(run));
  args.sets_of_group = static_cast<int>(sets_of_group(run));
  args.q_map = query_boxes(run.call.q, boxes.q, run.plan().tile.heads, run.p.group);
  args.k_map = boxes_of(run.call.k, boxes.k);
  Walk walk = run.walk_of(clusters * cluster_of(run));
  walk.early = true;
  walk.shares_tiles = known_parts(run, run.p.batch * sets_of(run), clusters) != 1;
  run.put_walk(launches, walk, args, at.memory);
}

}  // namespace attune::runtime::cuda

// codegen/cuda/mla_sm90/mla_sm90.cuh — the forward of MLA on Hopper: values are the first columns of the keys
//
// A block has 64 rows: queries times the heads that share keys. Keys come in tiles of 64, each loaded once, alternately
// into two stages; each of two warpgroups computes the scores of every other tile. Results are divided by columns: each
// warpgroup has half of the columns of all rows, 128 numbers per thread at 512 columns, and multiplies the
// probabilities of both tiles by its half of the values; it reads the other warpgroup's P from shared memory. The
// alternative is to split each tile's keys between the warpgroups: S = Q K^T would then be products of 32 columns, each
// of which reads all of q; that lowers the ceiling from 92 % to 74 % of the tensor cores' peak.
//
// Shared memory holds one probability matrix at a time: a warpgroup writes its own only after it has read the other's.
// The rows' maxima go with it. A maximum rises only when powers would exceed 2^slack.
//
// Queries are released with the last scores of their tile, so that the next ones load during the last products and
// while results leave. Results pass through the last tile of keys: each warpgroup has its columns of the values until
// then.
//
// The blocks of a cluster have different rows and read the same keys at the same time, so all but the first find the
// keys in the L2 cache. Clusters are persistent and take equal shares of all keys (split_kv_sm80.cuh);
// combine_mla_sm90.cuh then adds up the parts of split tiles.
//
// Masked-out values never reach a result: rows past the last key are cleared in shared memory. Rows with non-finite
// results but a finite sum are recomputed pair by pair.
#pragma once

#include "codegen/cuda/mla_sm90/producer.cuh"
#include "codegen/cuda/mla_sm90/warpgroup.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// What a Tile has; what is not here is as in the decode kernel. Three warpgroups, with SharedMla<Tile>::at.bytes of
/// shared memory and 1024 to align it.
template <class Tile>
concept TileOfMla = requires {
  // Element: of q and k, bf16 or f16; Out: of o, also float.
  requires ElementOf<typename Tile::Element>::bytes == 2 && sizeof(typename Tile::Out) >= 2;
  requires Tile::m == 64 && Tile::n == 64 && Tile::stages == 2 && 64 % Tile::heads == 0;
  requires Tile::d % 64 == 0 && Tile::dv % 256 == 0 && Tile::dv <= 512 && Tile::dv <= Tile::d;
  // Blocks that read the same keys.
  requires Tile::cluster == 1 || Tile::cluster == 2 || Tile::cluster == 4;
  // Keys of a TMA box: they divide a page's rows.
  requires Tile::box >= 8 && 64 % Tile::box == 0;
  // 0: scores start as soon as keys arrive. 1: the second warpgroup's scores start when the first's have arrived. 2:
  // when the second has multiplied the first's probabilities. 3: as 2, and a warpgroup multiplies its own probabilities
  // when the other's next scores have arrived.
  requires Tile::issue_order >= 0 && Tile::issue_order <= 3;
};

template <class Tile>
__device__ inline SplitRange& shared_split(unsigned shared) {
  return *static_cast<SplitRange*>(__cvta_shared_to_generic(shared + SharedMla<Tile>::at.split));
}

template <int Group, class Tile, class User>
__device__ inline void compute_mla(const MlaArgs& args, const User& user, unsigned shared) {
  using Shared = SharedMla<Tile>;
  MlaPlace<Tile> place;
  const SplitRange& split = shared_split<Tile>(shared);
#pragma unroll 1
  for (int tile = uniform(split.begin.tile); uniform(has_tile(split, tile)); ++tile) {
    barrier_wait(shared + Shared::at.q_full, (tile - split.begin.tile) & 1);
    const MlaItem<Tile, User> item = MlaItem<Tile, User>::in(shared, tile - split.begin.tile);
    MlaWarpgroup90<Tile, User, Group> group(args, user, shared, item);
    if (uniform(item.pairs) > 0) group.run(place);
    pin_with_memory(tile);
    // Read again, because the main loop leaves no registers for it.
    const MlaItem<Tile, User> same = MlaItem<Tile, User>::in(shared, tile - split.begin.tile);
    // Results pass through memory that only this warpgroup still has: its columns of the last values or, if there were
    // no keys, half of the queries.
    const bool keys = uniform(same.pairs) > 0;
    const unsigned through = keys ? group.keys(1, Group * Shared::at.half_chunks)
                                  : shared + Shared::at.q + Group * Shared::at.half_chunks * Shared::at.chunk_size,
                   freed = keys ? Shared::used(shared, 1, Group) : shared + Shared::at.q_empty;
    const SplitTile split_tile = same.begin > 0 ? split.at_begin : split.at_end;
    const int me = MlaTile<Tile>::worker();
    group.store(same, (tile - split.begin.tile) & 1,
                same.whole() ? nullptr
                             : mla_part<Tile>(args, split_tile.first, me - split_tile.first, cluster_rank<Tile>()),
                through, freed);
  }
}

template <TileOfMla Tile, class User>
__global__ void __launch_bounds__(MlaLayout90::block.threads, 1)
    mla_sm90(const __grid_constant__ ArgsOf<Tile, MlaArgs> args, const __grid_constant__ User user) {
  using Shared = SharedMla<Tile>;
  extern __shared__ unsigned char memory[];
  const unsigned start = shared_address(memory), shared = (start + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barrier_init(shared + Shared::at.q_full, 1);
    barrier_init(shared + Shared::at.q_empty, 8);
    for (int stage = 0; stage < Tile::stages; ++stage) {
      for (int c = 0; c < Shared::at.chunks; ++c) barrier_init(Shared::full(shared, stage, c), 1);
      for (int what = 0; what < 3; ++what) barrier_init(Shared::used(shared, stage, what), 4);
    }
    barrier_init_done();
  }
  // The next kernel's blocks start where blocks of this one have ended, and wait there.
  let_next_start();
  using Scratch = SplitScratch<MlaLayout90::block.threads>;
  static_assert(sizeof(Scratch) <= Shared::at.p_bytes);
  const SplitRange split = find_split<Tile, MlaTile<Tile>>(
      args, user, *reinterpret_cast<Scratch*>(memory + (shared - start) + Shared::at.p), wait_for_kernel_before);
  // The previous kernel may write what this one reads, or read what it writes.
  wait_for_kernel_before();
  if (threadIdx.x == 0) shared_split<Tile>(shared) = split;
  const int me = MlaTile<Tile>::worker();
  if (threadIdx.x == 0 && cluster_rank<Tile>() == 0) {
    const bool begins = split.end.step > 0 && (split.begin.tile < split.end.tile || split.begin.step == 0);
    args.cut[me] = begins && split.at_end.first == me ? CutTile{split.end.tile, me, split.at_end.count}
                                                      : CutTile{0, 0, 0};
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup_threads);
  if (group == 0) {
    registers_down<MlaLayout90::block.loading>();
    const SplitRange& its = shared_split<Tile>(shared);
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp < 3 && elected()) {
      if (warp == 0) MlaProducer90<0, Tile, User>{args, user, its, shared}.run();
      if (warp == 1) MlaProducer90<1, Tile, User>{args, user, its, shared}.run();
      if (warp == 2) MlaQueryProducer90<Tile, User>{args, user, its, shared}.run();
    }
  } else if (group == 1) {
    registers_up<MlaLayout90::block.computing>();
    compute_mla<0, Tile>(args, user, shared);
  } else {
    registers_up<MlaLayout90::block.computing>();
    compute_mla<1, Tile>(args, user, shared);
  }
}

}  // namespace attune

// codegen/cuda/parts/add_dq_sm90.cuh — the warps of Hopper's backward that accumulate dQ in memory, in order
#pragma once

#include "codegen/cuda/parts/tile_scheduler_backward_sm90.cuh"
#include "codegen/cuda/ptx/global.cuh"

namespace attune {

/// One thread per stage takes tiles of dQ from shared memory. A single thread would not keep up: for each tile it waits
/// until previous tiles are added, until its sums have arrived, and until other blocks see them. The first tile of keys
/// stores, later ones add, so sums need no clearing. A tile whose counter stays 0 has no gradient.
template <class Tile>
__device__ inline void add_up(const BackwardArgs& args, unsigned shared, int stage) {
  using Shared = Shared90Backward<Tile>;
  const StageBarriers sum{shared + Shared::sum_full + StageBarriers::bytes * stage};
  const unsigned from = shared + Shared::sums + stage * Shared::sum_step;
  unsigned phase = 0;
  for (unsigned step = stage;; step += Tile::stages, phase ^= 1) {
    barrier_wait(shared + Shared::known + 8 * (step % steps_kept), step / steps_kept & 1);
    const int tile = shared_get(step_word<Tile>(shared, step, 6));
    const unsigned before = static_cast<unsigned>(shared_get(step_word<Tile>(shared, step, 7)));
    if (tile == Step::no_more) return;
    if (tile == Step::nothing) {
      sum.wait(phase);
      barrier_arrive(sum.empty());
      continue;
    }
    float* to = args.sums + static_cast<long long>(tile) * (Shared::sum_bytes / 4);
    if (Tile::ordered)
      while (global_acquire(args.added + tile) != before) {
      }
    if (Tile::ordered) copy_fence();
    sum.wait(phase);
    if (Tile::ordered && before == 0)
      store_bulk(to, from, Shared::sum_bytes);
    else
      add_bulk(to, from, Shared::sum_bytes);
    store_commit();
    store_wait_read();
    barrier_arrive(sum.empty());
    if (Tile::ordered) {
      store_wait();
      global_release(args.added + tile, before + 1);
    }
  }
}

}  // namespace attune

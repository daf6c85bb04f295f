// codegen/cuda/backward_sm90/add_dq.cuh — the warps of Hopper's backward that accumulate dQ in memory, in order
#pragma once

#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Waits until the sums of a tile have those of `before` tiles of keys, which copies may then read and write.
__device__ inline void wait_for_turn(const BackwardArgs& args, int tile, unsigned before) {
  while (global_acquire(args.added + tile) != before) {
  }
  copy_fence();
}

/// Loads a tile's sums into a stage, or says that there are none to load; the consumers complete dQ with them.
template <class Tile>
__device__ inline void hand_back_sums(const BackwardArgs& args, unsigned shared, int stage, unsigned phase, int tile,
                                      unsigned before) {
  using Shared = Shared90Backward<Tile>;
  const unsigned loaded = shared + Shared::sums_loaded + 8 * stage;
  if (before == 0) {
    barrier_arrive(loaded);
    // No consumer waits for this phase; compute-sanitizer says so of phases that nobody waits for.
    return barrier_wait(loaded, phase);
  }
  wait_for_turn(args, tile, before);
  barrier_expect(loaded, Shared::sum_bytes);
  load_bulk(shared + Shared::sums + stage * Shared::sum_step,
            args.sums + static_cast<long long>(tile) * (Shared::sum_bytes / 4), Shared::sum_bytes, loaded);
}

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
    if constexpr (completes_dq<Tile>) {
      const bool completes = shared_get(step_word<Tile>(shared, step, 0)) & Step::completes;
      hand_back_sums<Tile>(args, shared, stage, phase, tile, completes ? before : 0);
      if (completes) {
        sum.wait(phase);
        barrier_arrive(sum.empty());
        args.added[tile] = before + 1;
        continue;
      }
    }
    if (tile == Step::nothing) {
      sum.wait(phase);
      barrier_arrive(sum.empty());
      continue;
    }
    float* to = args.sums + static_cast<long long>(tile) * (Shared::sum_bytes / 4);
    if (Tile::ordered) wait_for_turn(args, tile, before);
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

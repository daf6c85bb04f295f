// codegen/cuda/backward_sm90/backward_sm90.cuh — the backward on Hopper, for heads up to 128 wide: keys stay, five
// products, dq is added up in memory
//
// A block takes 128 keys of a head and iterates over the queries that see them. Each of two consumer warpgroups has 64
// keys. It computes S^T = K Q^T and dP^T = V dO^T from shared memory; in the same registers P and dS then are operands
// of dV += P^T dO and dK += dS^T Q. dS also goes through shared memory, because dQ = dS K sums over the keys of both
// warpgroups; each computes half of dQ. A separate warp adds dQ to f32 sums in memory by TMA, in a fixed order of tiles
// of keys, so that bits do not depend on timing. The producer warp schedules items; another warp loads, and prepares
// the rows' lse and delta.
#pragma once

#include "codegen/cuda/backward_sm90/consumer.cuh"
#include "codegen/cuda/backward_sm90/diagonals.cuh"
#include "codegen/cuda/backward_sm90/producer.cuh"
#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// What a Tile has: numbers and types that the host chooses.
template <class Tile>
concept BackwardTile = requires {
  typename Tile::Element;  // of q, k, v and grad_o: bf16, f16
  // Queries by keys: 128 queries where heads are at most 64 wide, else 64 or 80.
  requires(Tile::d > 64 ? Tile::m == 64 || Tile::m == turned_queries : Tile::m == 128) && Tile::n == 128;
  // Head widths, rounded up.
  requires Tile::d % 16 == 0 && Tile::dv % 16 == 0 && Tile::d <= 128 && Tile::dv <= 128;
  // Stages of queries, of dS and of dQ.
  requires Tile::stages == 2;
  // How many products are under way at once: see consumer.cuh.
  requires Tile::order >= 0 && Tile::order <= 3;
  // 1 if tiles of keys are added to dQ in a fixed order.
  requires Tile::ordered == 0 || Tile::ordered == 1;
  // Dense or packed.
  Layout(Tile::layout);
};

// ---- adding dQ up ------------------------------------------------------------------------------------------------

/// Waits until the sums of a tile have those of `before` tiles of keys, which copies may then read and write.
__device__ inline void wait_for_turn(const BackwardArgs& args, int tile, unsigned before) {
  while (global_acquire(args.added + tile) != before) {
  }
  copy_fence();
}

/// Loads a tile's sums into a stage, or says that there are none to load; the consumers complete dQ with them.
template <class Tile>
__device__ inline void hand_back_sums(const BackwardArgs& args, Shared90Backward<Tile> shared, int stage,
                                      unsigned phase, int tile, unsigned before) {
  constexpr int bytes = shared.sum_bytes;
  const unsigned loaded = shared.sums_loaded(stage);
  if (before == 0) {
    barrier_arrive(loaded);
    // No consumer waits for this phase; compute-sanitizer says so of phases that nobody waits for.
    return barrier_wait(loaded, phase);
  }
  wait_for_turn(args, tile, before);
  barrier_expect(loaded, bytes);
  load_bulk(shared.sums(stage), args.sums + static_cast<long long>(tile) * (bytes / 4), bytes, loaded);
}

/// One thread per stage takes tiles of dQ from shared memory. A single thread would not keep up: for each tile it waits
/// until previous tiles are added, until its sums have arrived, and until other blocks see them. The first tile of keys
/// stores, later ones add, so sums need no clearing. A tile whose counter stays 0 has no gradient.
template <class Tile>
__device__ inline void add_up(const BackwardArgs& args, Shared90Backward<Tile> shared, int stage) {
  constexpr int bytes = shared.sum_bytes;
  const StageBarriers sum = shared.sum_full()[stage];
  const unsigned from = shared.sums(stage);
  unsigned phase = 0;
  for (unsigned step = stage;; step += Tile::stages, phase ^= 1) {
    barrier_wait(shared.known(step), step / steps_kept & 1);
    const int tile = shared_get(step_word(shared, step, 6));
    const unsigned before = static_cast<unsigned>(shared_get(step_word(shared, step, 7)));
    if (tile == Step::no_more) return;
    if constexpr (completes_dq<Tile>) {
      const bool completes = shared_get(step_word(shared, step, 0)) & Step::completes;
      hand_back_sums(args, shared, stage, phase, tile, completes ? before : 0);
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
    float* to = args.sums + static_cast<long long>(tile) * (bytes / 4);
    if (Tile::ordered) wait_for_turn(args, tile, before);
    sum.wait(phase);
    if (Tile::ordered && before == 0)
      store_bulk(to, from, bytes);
    else
      add_bulk(to, from, bytes);
    store_commit();
    store_wait_read();
    barrier_arrive(sum.empty());
    if (Tile::ordered) {
      store_wait();
      global_release(args.added + tile, before + 1);
    }
  }
}

// ---- a block -----------------------------------------------------------------------------------------------------

/// The warp that copies needs more registers next to consumers of order 3, which have some to spare.
template <class Tile, class User>
constexpr Block90 backward_block = User::gradient.by_diagonal > 0                       ? BackwardLayout90::summing
                                   : copies_for_backward<Tile, User>&& Tile::order == 3 ? BackwardLayout90::block
                                                                                        : BackwardLayout90::narrow;

template <BackwardTile Tile, class User>
__global__ void __launch_bounds__(backward_block<Tile, User>.threads, 1)
    backward_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  using Shared = Shared90Backward<Tile>;
  constexpr bool sums_diagonals = User::gradient.by_diagonal > 0;
  static_assert(!(Shared::turned && sums_diagonals), "dS of 80 queries has no whole bands");
  static_assert(!completes_dq<Tile> || (Tile::ordered && !is_alone<Tile> && !Shared::turned && !sums_diagonals));
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) {
    for (int i = 0; i < steps_kept; ++i) barrier_init(shared.known(i), 1);
    for (int i = 0; i < Tile::stages; ++i) {
      shared.full()[i].init(2, 8);
      shared.sum_full()[i].init(8, 1);
      if constexpr (sums_diagonals) shared.ds_full()[i].init(8, Diagonals90<Tile, User>::warps);
      if constexpr (completes_dq<Tile>) barrier_init(shared.sums_loaded(i), 1);
    }
    barrier_init(shared.k_full(), 1);
    barrier_init(shared.v_full(), 1);
    barrier_init(shared.keys_empty(), 8);
    if constexpr (copies_for_backward<Tile, User>) barrier_init(shared.results_empty(), 8);
    if constexpr (Shared::shares_copied) barrier_init(shared.copied_empty(), 8);
    barrier_init_done();
    const auto takes_eights = [](const Gradient& to, int width) {
      return !to.to.data || stores_eights<typename Tile::Element>(to, width);
    };
    shared_put(shared.in_eights(), takes_eights(args.grad_v, args.dv) && takes_eights(args.grad_k, args.d));
  }
  __syncthreads();
  let_next_start();
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup_threads);
  if (group == 0) {
    registers_down<backward_block<Tile, User>.loading>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) Loader90Backward<Tile, User>{args, user, shared, static_cast<int>(threadIdx.x)}.run();
    if constexpr (!is_alone<Tile>)
      if (warp > 0 && warp <= Tile::stages && elected()) add_up(args, shared, warp - 1);
    if (warp == 3) load_steps(args, user, shared, static_cast<int>(threadIdx.x) % 32);
  } else if (sums_diagonals && group == 3) {
    if constexpr (sums_diagonals) {
      registers_down<backward_block<Tile, User>.helping>();
      Diagonals90<Tile, User>{args, user, shared, uniform(static_cast<int>(threadIdx.x) / 32) % 4}.run();
    }
  } else {
    registers_up<backward_block<Tile, User>.computing>();
    const int thread = static_cast<int>(threadIdx.x) % warpgroup_threads;
    BackwardConsumer90<Tile, User>{{{args, user, shared, group - 1, thread % 32, uniform(thread / 32)}}}.run();
  }
}

/// Stores zeros for queries that no keys visit: a block looks at cleared_tiles tiles of queries of a head.
template <class Tile>
__device__ inline void clear_queries(const BackwardArgs& args) {
  __shared__ float4 zeros[end_threads];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, h = static_cast<int>(blockIdx.y),
            b = static_cast<int>(blockIdx.z), first = cleared_tiles * static_cast<int>(blockIdx.x);
  const Range queries = entry_of<Tile>(args, b).queries;
  zeros[thread] = {};
  __syncthreads();
  let_next_start();
  wait_for_kernel_before();
  const unsigned* const added = args.added + sums_of<Tile>(args, b, h, queries.start) + first;
  unsigned left = __ballot_sync(~0u, (first + lane) * Tile::m < queries.length && added[lane] == 0);
  for (; left; left &= left - 1)
    for (int i = thread / 32; i < Tile::m / 16 * Shared90Backward<Tile>::at.d_chunks; i += 8) {
      const int row = (first + __ffs(static_cast<int>(left)) - 1) * Tile::m + 16 * (i % (Tile::m / 16));
      store_rows({args.grad_q, b, h, queries, row, args.d}, shared_address(zeros), 64 * (i / (Tile::m / 16)), lane);
    }
}

/// Converts the sums of dQ: one block per tile of queries, (tile, head, batch entry), from the last on, because the
/// last sums are still in the cache. If backward_sm90 has completed dQ, clears that of queries without keys instead.
///
/// Where all tiles of queries visit the same number of tiles of keys, blocks start with the first sets of heads and
/// convert complete tiles while the last items of backward_sm90 leave multiprocessors idle. The last block waits for
/// the end of backward_sm90, because the next kernel waits for this kernel only.
template <class Tile>
__global__ void __launch_bounds__(end_threads) end_queries_sm90(const __grid_constant__ BackwardArgs args) {
  if constexpr (completes_dq<Tile>) return clear_queries<Tile>(args);
  using Shared = Shared90Backward<Tile>;
  __shared__ float4 memory[Shared::sum_bytes / 16];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, of_group = thread % 128;
  const bool ahead = Tile::ordered && args.complete_at != 0;
  const auto place_of = [&](unsigned at, unsigned count) { return static_cast<int>(ahead ? at : count - 1 - at); };
  const int tile = place_of(blockIdx.x, gridDim.x), h = place_of(blockIdx.y, gridDim.y),
            b = place_of(blockIdx.z, gridDim.z);
  const Range queries = entry_of<Tile>(args, b).queries;
  const int place = sums_of<Tile>(args, b, h, queries.start) + tile;
  let_next_start();
  const bool last = blockIdx.x + 1 == gridDim.x && blockIdx.y + 1 == gridDim.y && blockIdx.z + 1 == gridDim.z;
  if (!ahead || last || global_acquire(args.added + place) != args.complete_at) wait_for_kernel_before();
  if (tile * Tile::m >= queries.length) return;
  const bool any = !Tile::ordered || args.added[place] > 0;
  // Each thread reads what one thread of a warpgroup stored.
  constexpr int fours = Shared::sum_bytes / 4096;
  const float4* from = reinterpret_cast<const float4*>(args.sums) +
                       static_cast<long long>(place) * (Shared::sum_bytes / 16) + thread / 128 * (128 * fours) +
                       of_group;
  float4 x[fours];
#pragma unroll
  for (int i = 0; i < fours; ++i) x[i] = any ? from[128 * i] : float4{};
  const unsigned into = shared_address(memory), area = into + 4096 * warp;
  const float by = args.scale;
  float zero = 0;
#pragma unroll
  for (int i = 0; i < fours; ++i) {
    zero += x[i].x * 0.0f + x[i].y * 0.0f + x[i].z * 0.0f + x[i].w * 0.0f;
    if constexpr (Shared::turned) {
      // Areas of 16 queries and 64 columns, first those of the first columns.
      const unsigned at = into + 4096 * (Tile::m / 16 * (warp / 4) + i / 2);
      const int query = 8 * (i % 2) + 2 * (lane & 3), column = 16 * (warp % 4) + lane / 4;
      shared_put(staged(at, query, column), __float_as_int(x[i].x * by));
      shared_put(staged(at, query + 1, column), __float_as_int(x[i].y * by));
      shared_put(staged(at, query, column + 8), __float_as_int(x[i].z * by));
      shared_put(staged(at, query + 1, column + 8), __float_as_int(x[i].w * by));
    } else {
      const int column = 8 * i + 2 * (lane & 3);
      shared_put(staged(area, lane / 4, column), x[i].x * by, x[i].y * by);
      shared_put(staged(area, lane / 4 + 8, column), x[i].z * by, x[i].w * by);
    }
  }
  if (args.non_finite && !(zero == 0.0f)) *args.non_finite = 1;
  if constexpr (Shared::turned) {
    __syncthreads();
    for (int i = warp; i < 2 * (Tile::m / 16); i += 8) {
      const int half = i / (Tile::m / 16);
      const WarpRows rows{args.grad_q, b, h, queries, tile * Tile::m + 16 * (i % (Tile::m / 16)), args.d};
      store_rows(rows, into + 4096 * i, 64 * half, lane);
    }
    return;
  }
  __syncwarp();
  // With 128 queries each warpgroup has 64 of them; otherwise each has half of the width.
  const int row = tile * Tile::m + 16 * (warp % 4) + (Tile::m == 128 ? 64 * (warp / 4) : 0);
  const WarpRows rows{args.grad_q, b, h, queries, row, args.d};
  store_rows(rows, area, Tile::m == 128 ? 0 : 64 * (warp / 4), lane);
}

}  // namespace attune

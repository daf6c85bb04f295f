// codegen/cuda/kernels/backward_sm90.cuh — the backward on Hopper, for heads up to 128 wide: keys stay, five products,
// dq is added up in memory
//
// A block takes 128 keys of a head and walks the queries that see them. Two groups of four warps have 64 keys each: S^T
// = K Q^T and dP^T = V dO^T from shared memory, whose numbers become, in the same registers, operands of dV += P^T dO
// and dK += dS^T Q. dS also goes through shared memory: dQ = dS K sums over the keys of both groups, each of which
// computes half. A warp of its own adds dQ to f32 sums in memory by the copy engine, tiles of keys in a fixed order, so
// that bits do not depend on timing. One warp deals items, loads, and prepares the ends of rows.
//
// Tile: Element (bf16, f16); m x n: 64 x 128 queries and keys, or 128 x 128 where d is at most 64; d, dv: multiples of
// 16; stages of queries, of dS and of dq, 2; order: how much is under way at once (below); ordered: tiles of keys are
// added to dq in a fixed order.
#pragma once

#include "codegen/cuda/parts/deal_backward_sm90.cuh"
#include "codegen/cuda/parts/diagonals_sm90.cuh"
#include "codegen/cuda/parts/group_sm90.cuh"
#include "codegen/cuda/ptx/global.cuh"
#include "codegen/cuda/ptx/ldmatrix.cuh"

namespace attune {

// ---- adding dq up ------------------------------------------------------------------------------------------------

/// A thread for each stage takes tiles of dq from shared memory: one alone, which waits for its turn, for its sums to
/// arrive and for others to see that, would not keep up. The first tile of keys stores, others add: nothing is cleared
/// before, and a tile whose turns stay 0 has no gradient.
template <class Tile>
__device__ inline void add_up(const BackwardArgs& args, unsigned shared, int stage) {
  using Shared = Shared90Backward<Tile>;
  const unsigned full = shared + Shared::sum_full + 16 * stage,
                 from = shared + Shared::sums + stage * Shared::sum_bytes;
  unsigned phase = 0;
  for (unsigned step = stage;; step += Tile::stages, phase ^= 1) {
    barrier_wait(shared + Shared::known + 8 * (step % steps_kept), step / steps_kept & 1);
    const int tile = shared_get(step_word<Tile>(shared, step, 6));
    const unsigned turn = static_cast<unsigned>(shared_get(step_word<Tile>(shared, step, 7)));
    if (tile == Step::no_more) return;
    if (tile == Step::nothing) {
      barrier_wait(full, phase);
      barrier_arrive(full + 8);
      continue;
    }
    float* to = args.sums + static_cast<long long>(tile) * (Shared::sum_bytes / 4);
    if (Tile::ordered)
      while (global_acquire(args.turns + tile) != turn) {
      }
    barrier_wait(full, phase);
    if (Tile::ordered) copy_fence();
    if (Tile::ordered && turn == 0)
      store_bulk(to, from, Shared::sum_bytes);
    else
      add_bulk(to, from, Shared::sum_bytes);
    store_commit();
    store_wait_read();
    barrier_arrive(full + 8);
    if (Tile::ordered) {
      store_wait();
      copy_fence();
      global_release(args.turns + tile, turn + 1);
    }
  }
}

// ---- computing ---------------------------------------------------------------------------------------------------

/// A thread's registers while its group computes 64 keys.
template <class Tile, class User>
struct Group90Backward : KeysByQueries<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = Shared90Backward<Tile>;
  using Pairs = KeysByQueries<Tile, User>;
  using Row = typename User::Row;
  using Col = typename User::Col;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::group, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at,
      Pairs::head, Pairs::factor, Pairs::origin, Pairs::is_kept;
  static constexpr int m = Tile::m, n = Tile::n;
  static constexpr int order = User::traits.has_prob ? 0 : Tile::order;

  float dp[m / 2];  ///< then, its first 32, dq
  float dk[Tile::d / 2], dv[Tile::dv / 2];
  unsigned p[m / 4], ds[m / 4];

  __device__ float (&dq())[32] { return *reinterpret_cast<float(*)[32]>(dp); }

  // ---- products ----

  /// Where the rows of this group's keys or values are.
  __device__ unsigned of_group(int keys) const { return shared + keys + group * 64 * chunk_bytes; }
  __device__ void scores(int stage) {
    wgmma_fence();
    across<Element, Tile::d, n>(s, of_group(Shared::k), shared + Shared::q + stage * Shared::q_bytes);
  }
  __device__ void flows(int stage) {
    wgmma_fence();
    across<Element, Tile::dv, n>(dp, of_group(Shared::v), shared + Shared::grad_o + stage * Shared::grad_o_bytes);
  }
  __device__ void add_values(int stage) {
    along<Element, m, 0, m / 16>(dv, p, shared + Shared::grad_o + stage * Shared::grad_o_bytes);
  }
  __device__ void add_keys(int stage) {
    along<Element, m, 0, m / 16>(dk, ds, shared + Shared::q + stage * Shared::q_bytes);
  }
  /// This group's half of dq.
  __device__ void products_of_queries(int buffer) {
    const unsigned long long a = descriptor(shared + Shared::ds + buffer * Shared::ds_bytes +
                                            (m == 128 ? group * 64 * chunk_bytes : 0)),
                             b = descriptor(shared + Shared::k + (m == 128 ? 0 : group * n * chunk_bytes));
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < n / Shared::chunk; ++c)
      if (c == 0)
        Product<64, Element>::template set4<Major::k, Major::n>(dq(), a, b);
      else
        Product<64, Element>::template ss4<Major::k, Major::n>(dq(), a + c * (m * chunk_bytes >> 4),
                                                               b + c * (64 * chunk_bytes >> 4), 1);
    wgmma_commit();
  }

  // ---- pairs ----

  __device__ int word(unsigned step, int i) const { return uniform(shared_get(step_word<Tile>(shared, step, i))); }
  __device__ void enter(unsigned step) {
    this->enter_head(word(step, 2), word(step, 3));
    this->enter_queries(word(step, 1));
    this->enter_keys(word(step, 4) * n + 64 * group);
  }

  /// Scores become probabilities, an operand in `p`. What stays in their place is p times the slope, in f32.
  __device__ void weigh(int stage) {
    const unsigned ends = shared + Shared::under + 4 * (stage * m + 2 * (lane & 3));
    float2 under{};
    float low[2];
    this->template each_pair<false>([&](int i, int e, int r, const Row& row, const Col& col, Int q, Int kv, bool) {
      if (e == 0 && r == 0) under = shared_get2(ends + 32 * i);
      const int nth = 4 * i + 2 * r + e;
      const float given = s[nth];
      const float to = probability_of(user, head, row, col, at, origin, q, kv, factor, e ? under.y : under.x,
                                      is_kept(nth), given);
      if (e == 0)
        low[r] = to;
      else
        p[2 * i + r] = pack<Element>(low[r], to);
      if constexpr (User::gradient.has_slope)
        s[nth] = is_kept(nth) ? to * user.slope(given, head, row, col, at, origin, q, kv) : 0.0f;
      else
        s[nth] = to;
    });
  }

  /// dP becomes dS, an operand in `ds`: what weigh left is rounded once, as a part of it.
  __device__ void join(int stage) {
    const unsigned ends = shared + Shared::delta + 4 * (stage * m + 2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < m / 8; ++i) {
      const float2 delta = shared_get2(ends + 32 * i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int nth = 4 * i + 2 * r;
        ds[2 * i + r] = pack<Element>(s[nth] * (dp[nth] - delta.x), s[nth + 1] * (dp[nth + 1] - delta.y));
      }
    }
  }

  /// Both at once, for probabilities that are not what the softmax gives.
  __device__ void weigh_and_join(int stage) {
    const unsigned ends = shared + Shared::under + 4 * (stage * m + 2 * (lane & 3));
    float2 under{}, delta{};
    PairNumbers low[2];
    this->template each_pair<false>([&](int i, int e, int r, const Row& row, const Col& col, Int q, Int kv, bool) {
      if (e == 0 && r == 0) {
        under = shared_get2(ends + 32 * i);
        delta = shared_get2(ends + 32 * i + (Shared::delta - Shared::under));
      }
      const int nth = 4 * i + 2 * r + e;
      const RowEnd end = e ? RowEnd{under.y, delta.y} : RowEnd{under.x, delta.x};
      const PairNumbers out = gradient_of(user, head, row, col, at, origin, q, kv, factor, end, is_kept(nth),
                                          {s[nth], dp[nth]}, [](Flow, float, float) {});
      if (e == 0) {
        low[r] = out;
      } else {
        p[2 * i + r] = pack<Element>(low[r].s, out.s);
        ds[2 * i + r] = pack<Element>(low[r].dp, out.dp);
      }
    });
  }

  /// Puts dS into shared memory, queries by keys in swizzled rows of 64 keys.
  __device__ void share(int buffer) const {
    const unsigned into = shared + Shared::ds + buffer * Shared::ds_bytes + group * m * chunk_bytes;
    const int line = (lane & 7) + 8 * (lane >> 4);
    const unsigned address = into + line * chunk_bytes + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
#pragma unroll
    for (int i = 0; i < m / 16; ++i)
      store_blocks_transposed(address + i * 16 * chunk_bytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
  }

  static constexpr bool has_diagonals = User::gradient.by_diagonal > 0;
  /// Until the warp that sums diagonals is done with the tile of dS before.
  __device__ void wait_for_diagonals(int buffer, unsigned phase) const {
    if constexpr (has_diagonals) barrier_wait(shared + Shared::ds_full + 16 * buffer + 8, phase ^ 1);
  }
  __device__ void give_diagonals(int buffer) const {
    if constexpr (!has_diagonals) return;
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Shared::ds_full + 16 * buffer);
  }

  /// Puts this group's half of dq where a warp that adds takes it.
  __device__ void put_sums(int stage, unsigned phase) {
    wait_for_sums(stage, phase);
    const unsigned into = shared + Shared::sums + stage * Shared::sum_bytes + group * 16384 + 16 * (32 * warp + lane);
    const float(&x)[32] = dq();
#pragma unroll
    for (int i = 0; i < 8; ++i) shared_put(into + 2048 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
  /// Until the tile of dq before is out of the stage.
  __device__ void wait_for_sums(int stage, unsigned phase) const {
    barrier_wait(shared + Shared::sum_full + 16 * stage + 8, phase ^ 1);
  }
  /// What was put there is complete, and a proxy_fence() lies behind it.
  __device__ void give_sums(int stage) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Shared::sum_full + 16 * stage);
  }

  /// The warp's part of what its group puts dS into, 16 rows of staged().
  __device__ unsigned staging() const {
    constexpr int part = 16 * 64 * 4, of_group = m * chunk_bytes, parts = of_group / part;
    return shared + Shared::ds + warp / parts * Shared::ds_bytes + group * of_group + warp % parts * part;
  }
  /// Stores the warp's 16 keys of dk or dv through there.
  template <int Half>
  __device__ void store(int b, int kv_head, const float (&x)[Half], const Gradient& to, int columns, float by) {
    if (!to.to.data) return;
    const unsigned area = staging();
    const Stretch of = stretch<Tile>(args.kv_starts, b, args.kv_len);
    const int row = this->keys - lane / 4, into = args.kv_shared ? 0 : b;
    if (stores_eights<Element>(to, columns))
      store_sixteen<Element>(x, by, to, area, into, kv_head, of, row, columns, lane);
    else
      stage_sixteen(x, by, area, lane,
                    [&](int first) { store_rows(to, area, into, kv_head, of, row, first, columns, lane); });
  }
};

/// Orders, by what is under way while a group computes. 0: nothing; both S and dP are waited for. 1: dP beside
/// probabilities, dV beside dS. 2: also the next S while dQ is stored, which is handed over behind the next dS: a fence
/// of its own, with nothing behind it yet, cost 1 %.
template <class Tile, class User>
__device__ inline void compute_backward(const BackwardArgs& args, const User& user, unsigned shared, int group) {
  using Shared = Shared90Backward<Tile>;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Group90Backward<Tile, User> g{{args, user, shared, group, thread % 32, uniform(thread / 32)}};
  constexpr int order = g.order;
  // How many steps there were, and in the last bit the phase of keys: registers are short.
  constexpr unsigned keys_bit = 1u << 31;
  unsigned clock = 0;
  static_assert(Tile::stages == 2);
  const auto stage_now = [&] { return uniform(static_cast<int>(clock & 1)); };
  const auto phase_of = [&](unsigned clock) { return clock >> 1 & 1; };
  const auto wait = [&] { barrier_wait(shared + Shared::full + 16 * (clock & 1), phase_of(clock)); };
  const auto release = [&](unsigned barrier) {
    __syncwarp();
    if (g.lane == 0) barrier_arrive(barrier);
  };
  const auto release_stage = [&](int stage) { release(shared + Shared::full + 16 * stage + 8); };
#pragma unroll 1
  for (;;) {
    wait();
    int what = g.word(clock, 0);
    if (what & Step::stop) break;
    for (float& x : g.dk) x = 0;
    for (float& x : g.dv) x = 0;
    if (what & Step::empty) {
      release_stage(stage_now());
      g.wait_for_sums(stage_now(), phase_of(clock));
      g.give_sums(stage_now());
      g.wait_for_diagonals(stage_now(), phase_of(clock));
      g.give_diagonals(stage_now());
      ++clock;
    } else {
      barrier_wait(shared + Shared::k_full, clock >> 31);
      barrier_wait(shared + Shared::v_full, clock >> 31);
      pin(g.dk);
      pin(g.dv);
      if constexpr (order == 2) {
        g.scores(stage_now());
        wgmma_wait<0>();
        pin(g.s);
      }
#pragma unroll 1
      for (;;) {
        const int stage = stage_now();
        what = g.word(clock, 0);
        if constexpr (order < 2) g.scores(stage);
        g.flows(stage);
        g.enter(clock);
        if constexpr (order > 0) {
          if constexpr (order == 1) {
            wgmma_wait<1>();
            pin(g.s);
          }
          g.remove(what & Step::whole);
          g.weigh(stage);
          g.add_values(stage);
          wgmma_wait<1>();
          pin(g.dp);
          g.join(stage);
        } else {
          wgmma_wait<0>();
          pin(g.s);
          pin(g.dp);
          g.remove(what & Step::whole);
          g.weigh_and_join(stage);
          g.add_values(stage);
        }
        g.wait_for_diagonals(stage, phase_of(clock));
        g.share(stage);
        g.give_diagonals(stage);
        g.add_keys(stage);
        proxy_fence();
        if constexpr (order == 2)
          if (!(what & Step::first)) g.give_sums(stage ^ 1);
        named_sync(1, 256);
        g.products_of_queries(stage);
        if constexpr (order < 2) {
          wgmma_wait<0>();
          pin(g.dp);
          pin(g.dk);
          pin(g.dv);
          release_stage(stage);
          g.put_sums(stage, phase_of(clock));
          proxy_fence();
          g.give_sums(stage);
          ++clock;
          if (what & Step::last) break;
          wait();
        } else {
          ++clock;
          // After the last step the products are of anything: a branch around them would serialise all.
          if (!(what & Step::last)) wait();
          // dS has to leave its registers first; dQ is under way.
          wgmma_wait<1>();
          g.scores(stage ^ 1);
          wgmma_wait<1>();
          pin(g.dp);
          pin(g.dk);
          pin(g.dv);
          release_stage(stage);
          g.put_sums(stage, phase_of(clock - 1));
          if (what & Step::last) {
            proxy_fence();
            g.give_sums(stage);
          }
          wgmma_wait<0>();
          pin(g.s);
          if (what & Step::last) break;
        }
      }
      clock ^= keys_bit;
    }
    // The next keys may come while results leave.
    release(shared + Shared::keys_empty);
    if constexpr (User::gradient.removes || is_packed<Tile>)
      if (args.odd && __any_sync(~0u, is_odd(g.dk) || is_odd(g.dv)) && g.lane == 0) *args.odd = 1;
    const unsigned step = clock - 1;
    const int b = g.word(step, 2), kv_head = g.word(step, 5);
    g.keys = g.word(step, 4) * Tile::n + 64 * group + 16 * g.warp + g.lane / 4;
    // All are done with dS, whose memory results pass through.
    for (unsigned before = 1; before <= Tile::stages; ++before)
      g.wait_for_diagonals(static_cast<int>(clock - before & 1), phase_of(clock - before) ^ 1);
    named_sync(1, 256);
    g.store(b, kv_head, g.dv, args.grad_v, args.dv, 1);
    g.store(b, kv_head, g.dk, args.grad_k, args.d, args.scale);
    // Each warp puts its dS all over its group's part.
    named_sync(2 + group, 128);
  }
}

template <class Tile, class User>
__global__ void __launch_bounds__(384, 1)
    backward_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  using Shared = Shared90Backward<Tile>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < steps_kept; ++i) barrier_init(shared + Shared::known + 8 * i, 1);
    for (int i = 0; i < Tile::stages; ++i) {
      barrier_init(shared + Shared::full + 16 * i, 1);
      barrier_init(shared + Shared::full + 16 * i + 8, 8);
      barrier_init(shared + Shared::sum_full + 16 * i, 8);
      barrier_init(shared + Shared::sum_full + 16 * i + 8, 1);
      if constexpr (User::gradient.by_diagonal > 0) {
        barrier_init(shared + Shared::ds_full + 16 * i, 8);
        barrier_init(shared + Shared::ds_full + 16 * i + 8, 1);
      }
    }
    barrier_init(shared + Shared::k_full, 1);
    barrier_init(shared + Shared::v_full, 1);
    barrier_init(shared + Shared::keys_empty, 8);
    barrier_init_done();
  }
  __syncthreads();
  let_next_start();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    registers_down<40>();
    const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == 0) Loader90Backward<Tile, User>{args, user, shared, static_cast<int>(threadIdx.x)}.run();
    if (warp > 0 && warp <= Tile::stages && threadIdx.x % 32 == 0) add_up<Tile>(args, shared, warp - 1);
    if constexpr (User::gradient.by_diagonal > 0)
      if (warp == 3) Diagonals90<Tile, User>{args, user, shared}.run();
  } else {
    registers_up<232>();
    compute_backward<Tile>(args, user, shared, group - 1);
  }
}

/// Sums of dq become dq: a block for each tile of queries, (tile, head, batch entry), from the last on, whose sums are
/// still in the cache.
template <class Tile>
__global__ void __launch_bounds__(256) end_queries_sm90(const __grid_constant__ BackwardArgs args) {
  using Shared = Shared90Backward<Tile>;
  __shared__ float4 memory[Shared::sum_bytes / 16];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32, of_group = thread % 128;
  const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x), h = static_cast<int>(gridDim.y - 1 - blockIdx.y),
            b = static_cast<int>(gridDim.z - 1 - blockIdx.z);
  const Stretch queries = stretch<Tile>(args.q_starts, b, args.q_len);
  let_next_start();
  wait_for_kernel_before();
  if (tile * Tile::m >= queries.length) return;
  const int place = sums_of<Tile>(args, b, h) + tile;
  const bool any = !Tile::ordered || args.turns[place] > 0;
  const float4* from = reinterpret_cast<const float4*>(args.sums) +
                       static_cast<long long>(place) * (Shared::sum_bytes / 16) + thread / 128 * 1024 + of_group;
  float4 x[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = any ? from[128 * i] : float4{};
  const unsigned area = shared_address(memory) + 4096 * warp;
  float zero = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float by = args.scale;
    const int column = 8 * i + 2 * (lane & 3);
    zero += x[i].x * 0.0f + x[i].y * 0.0f + x[i].z * 0.0f + x[i].w * 0.0f;
    shared_put(staged(area, lane / 4, column), x[i].x * by, x[i].y * by);
    shared_put(staged(area, lane / 4 + 8, column), x[i].z * by, x[i].w * by);
  }
  if (args.odd && !(zero == 0.0f)) *args.odd = 1;
  __syncwarp();
  // Where queries are 128, groups have 64 of them each, else half of the width.
  const int row = tile * Tile::m + 16 * (warp % 4) + (Tile::m == 128 ? 64 * (warp / 4) : 0);
  store_rows(args.grad_q, area, b, h, queries, row, Tile::m == 128 ? 0 : 64 * (warp / 4), args.d, lane);
}

}  // namespace attune

// codegen/cuda/backward_wide_sm90/keys_f32_sm90.cuh — the backward of k and v on Hopper where q, k, v and grad_o are
// f32: keys stay, four products of f16
//
// The block of keys_sm90.cuh, whose operands are numbers of f16 that split_rows_sm90.cuh has written (split.cuh):
// three products for numbers as exact as f32, or one. Each warpgroup ends a step before the next one; its arithmetic
// overlaps the other warpgroup's products. P and dS are split in registers, times the factors of the rows that a
// product sums over, and P goes to the second warpgroup in f32.
#pragma once

#include "codegen/cuda/backward_wide_sm90/keys_sm90.cuh"

namespace attune {

/// The warpgroup that computes S, P and dV.
template <class Tile, class User>
struct ScoresOfF32Keys90 : PairsOfKeys90<Tile, User> {
  using Shared = SharedKeys90<Tile>;
  using Pairs = PairsOfKeys90<Tile, User>;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at, Pairs::head,
      Pairs::factor, Pairs::origin, Pairs::is_kept;
  static constexpr int m = Tile::m;

  float dv[Tile::real_dv / 2];
  float by_key[2];  ///< the factors of this thread's keys

  /// Where the factors of queries 2 c and 2 c + 1 of a stage are; those of the next eight follow 64 bytes later.
  __device__ unsigned factors(int stage) const { return shared.q_factors() + 8 * (stage * m + 2 * (lane & 3)); }

  /// S^T = K Q^T, complete when it returns.
  __device__ void scores(int stage) {
    SplitSums<Tile::parts, Tile::wide != 0> sums;
    sums.template across<Tile::real_d, Tile::n>(shared.k(), shared.q()[stage]);
    wgmma_wait<0>();
    sums.arrived();
#pragma unroll
    for (int i = 0; i < m / 8; ++i) {
      const float4 of = shared_get4(factors(stage) + 64 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[4 * i + j] = sums[4 * i + j] * ((j % 2 ? of.z : of.x) * by_key[j / 2]);
    }
  }

  /// P, in the registers of S; what dS takes of P, stored for the other warpgroup.
  __device__ void weigh(int stage) {
    const unsigned ends = shared.under() + 4 * (stage * m + 2 * (lane & 3)),
                   into = shared.weights() + 16 * (32 * warp + lane);
    float2 under{};
    float w[4];
    this->template each_pair<false>(
        [&](int i, int e, int r, const typename User::Row& row, const typename User::Col& col, Int q, Int kv, bool) {
          if (e == 0 && r == 0) under = shared_get2(ends + 32 * i);
          const int nth = 4 * i + 2 * r + e;
          const float given = s[nth];
          s[nth] = probability_of(user, Pair<User>{head, row, col, at, origin, q, kv}, factor, e ? under.y : under.x,
                                  is_kept(nth), given);
          w[2 * r + e] = s[nth];
          if constexpr (User::gradient.has_slope)
            w[2 * r + e] = is_kept(nth) ? s[nth] * user.slope(given, head, row, col, at, origin, q, kv) : 0.0f;
          if (e == 1 && r == 1) shared_put(into + 2048 * i, w[0], w[1], w[2], w[3]);
        });
  }

  /// A step of queries: P = exp2(S - lse), handed to the other warpgroup; dV += P^T dO.
  __device__ void iteration(int nth, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    q.wait();
    const int whole = this->enter(q.stage);
    scores(q.stage);
    this->remove(whole);
    // The other warpgroup has taken the weights of the previous step.
    weights.acquire(nth & 1);
    weigh(q.stage);
    arrive_as_warp(weights.full, lane);
#pragma unroll
    for (int i = 0; i < m / 8; ++i) {
      const float4 of = shared_get4(factors(q.stage) + 64 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) s[4 * i + j] *= j % 2 ? of.w : of.y;
    }
    q.release_as_warp(lane);
    const F16Parts<Tile::parts> p(s);
    grad_o.wait();
    p.add_to(dv, shared.grad_o()[grad_o.stage]);
    grad_o.release_as_warp(lane);
    q.next();
    grad_o.next();
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dv) x = 0;
    this->enter_keys(keys.first);
    for (int r = 0; r < 2; ++r) by_key[r] = factor_of_row(args.k, keys.b, keys.kv_head, this->keys + 8 * r);
    barrier_wait(shared.k_full(), 0);
    const int steps = uniform(shared_get(shared.steps()));
    const StageBarriers weights = shared.weights_full(warp);  // for this warp
    Ring<Shared::grad_o_stages> grad_o(shared.grad_o_full());
    Ring<Shared::stages> q(shared.q_full());
#pragma unroll 1
    for (int nth = 0; nth < steps; ++nth) iteration(nth, weights, q, grad_o);
    if (__any_sync(~0u, has_non_finite(dv)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the keys, which only this warpgroup reads.
    named_sync(first_warpgroup_done, warpgroup_threads);
    if (!args.grad_v.to.data) return;
    const unsigned area = shared.k() + 4096 * warp;
    const WarpRows rows{args.grad_v, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.dv};
    stage_sixteen(dv, 1, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// The warpgroup that computes dP, dS and dK.
template <class Tile, class User>
struct FlowsOfF32Keys90 : ThreadOfKeys90<Tile, User> {
  using Shared = SharedKeys90<Tile>;
  using Thread = ThreadOfKeys90<Tile, User>;
  using Thread::args, Thread::shared, Thread::lane, Thread::warp;
  static constexpr int m = Tile::m;

  float ds[m / 2], dk[Tile::real_d / 2];
  float by_key[2];  ///< the factors of this thread's values

  /// dP^T = V dO^T, dS = P (dP - delta), times the factors of the queries.
  __device__ void flows(int nth, int stage, StageBarriers weights) {
    SplitSums<Tile::parts, Tile::wide != 0> sums;
    sums.template across<Tile::real_dv, Tile::n>(shared.v(), shared.grad_o()[stage]);
    const unsigned ends = shared.delta() + 4 * (stage * m + 2 * (lane & 3)),
                   factors = shared.grad_o_factors() + 8 * (stage * m + 2 * (lane & 3)),
                   given = shared.weights() + 16 * (32 * warp + lane);
    weights.wait(nth & 1);
    wgmma_wait<0>();
    sums.arrived();
#pragma unroll
    for (int i = 0; i < m / 8; ++i) {
      const float2 delta = shared_get2(ends + 32 * i);
      const float4 of = shared_get4(factors + 64 * i), all = shared_get4(given + 2048 * i);
      const float w[4] = {all.x, all.y, all.z, all.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float dp = sums[4 * i + j] * ((j % 2 ? of.w : of.y) * by_key[j / 2]);
        ds[4 * i + j] = w[j] * (dp - (j % 2 ? delta.y : delta.x)) * (j % 2 ? of.z : of.x);
      }
    }
    arrive_as_warp(weights.empty(), lane);
  }

  /// A step of queries: dS = P (dP - delta), with the other warpgroup's P; dK += dS^T Q.
  __device__ void iteration(int nth, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    grad_o.wait();
    flows(nth, grad_o.stage, weights);
    grad_o.release_as_warp(lane);
    const F16Parts<Tile::parts> of(ds);
    q.wait();
    of.add_to(dk, shared.q()[q.stage]);
    q.release_as_warp(lane);
    q.next();
    grad_o.next();
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dk) x = 0;
    for (int r = 0; r < 2; ++r)
      by_key[r] = factor_of_row(args.v, keys.b, keys.kv_head, keys.first + 16 * warp + lane / 4 + 8 * r);
    barrier_wait(shared.v_full(), 0);
    const int steps = uniform(shared_get(shared.steps() + 4));
    const StageBarriers weights = shared.weights_full(warp);  // for this warp
    Ring<Shared::grad_o_stages> grad_o(shared.grad_o_full());
    Ring<Shared::stages> q(shared.q_full());
#pragma unroll 1
    for (int nth = 0; nth < steps; ++nth) iteration(nth, weights, q, grad_o);
    if (__any_sync(~0u, has_non_finite(dk)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the values, which only this warpgroup reads.
    named_sync(second_warpgroup_done, warpgroup_threads);
    if (!args.grad_k.to.data) return;
    const unsigned area = shared.v() + 4096 * warp;
    const WarpRows rows{args.grad_k, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.d};
    stage_sixteen(dk, args.scale, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

template <NarrowedTile Tile, class User>
__global__ void __launch_bounds__(wide_block.threads, 1)
    keys_f32_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  using Split = F16PartsTile<Tile>;
  static_assert(Tile::m == 64);
  keys_block<ScoresOfF32Keys90<Split, User>, FlowsOfF32Keys90<Split, User>, Split>(args, user);
}

}  // namespace attune

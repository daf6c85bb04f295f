// codegen/cuda/backward_wide_sm90/queries_f32_sm90.cuh — the backward of q on Hopper where q, k, v and grad_o are f32:
// queries stay, three products of f16
//
// The block of queries_sm90.cuh, whose operands are numbers of f16 that split_rows_sm90.cuh has written
// (split.cuh): three products for numbers as exact as f32, or one. A warpgroup computes probabilities while dP is
// under way, and ends a tile of keys before the next one; the rest of its arithmetic overlaps the other
// warpgroup's products. dS, times the factors of the keys, is split in registers.
#pragma once

#include "codegen/cuda/backward_wide_sm90/queries_sm90.cuh"

namespace attune {

template <class Tile, class User>
struct QueriesF32Warpgroup90 : QueriesByKeys<Tile, User> {
  using Shared = SharedQueries90<Tile>;
  using Pairs = QueriesByKeys<Tile, User>;
  using Pairs::args, Pairs::shared, Pairs::group, Pairs::lane, Pairs::m, Pairs::n, Pairs::s, Pairs::ends, Pairs::at;

  float dq[Tile::real_d / 2];
  float by_query[2], by_grad_o[2];  ///< the factors of this thread's queries
  const float *by_key, *by_value;   ///< of the head's keys, from this thread's first one on

  __device__ void enter(const Queries90<Tile>& queries) {
    Pairs::enter(queries);
    const int line = queries.tile * m + 64 * group + 16 * this->warp + lane / 4;
    for (int r = 0; r < 2; ++r) {
      // The second warpgroup may have no queries at all, and then no factors.
      const int existing = min(line + 8 * r, args.q_len - 1);
      by_query[r] = factor_of_row(args.q, at.b, at.h, existing);
      by_grad_o[r] = factor_of_row(args.grad_o, at.b, at.h, existing);
    }
    const auto of_keys = [&](const Strided& of) {
      return static_cast<const float*>(of.data) + (args.kv_shared ? 0 : at.b) * of.batch + at.h / args.group * of.head +
             2 * (lane & 3);
    };
    by_key = of_keys(args.k);
    by_value = of_keys(args.v);
  }
  /// The factors of two neighbouring keys, of the eight from 8 i on.
  __device__ static float2 two(const float* factors, int tile, int i) {
    return __ldg(reinterpret_cast<const float2*>(factors + tile * n + 8 * i));
  }

  /// S = Q K^T, complete when it returns.
  __device__ void scores(int tile, int stage) {
    SplitSums<Tile::parts, Tile::wide != 0> sums;
    sums.template across<Tile::real_d, m>(shared.q().from(64 * group), shared.k()[stage]);
    wgmma_wait<0>();
    sums.arrived();
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
      const float2 of = two(by_key, tile, j);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[4 * j + e] = sums[4 * j + e] * ((e % 2 ? of.y : of.x) * by_query[e / 2]);
    }
  }

  /// A tile of keys: S = Q K^T, dP = dO V^T, P = exp2(S - lse), dS = P (dP - delta), dQ += dS K.
  __device__ void iteration(const Walk& walk, int i, Ring<Tile::stages>& k, Ring<Tile::v_stages>& v) {
    const int tile = walk.tile(i);
    k.wait();
    scores(tile, k.stage);
    SplitSums<Tile::parts, Tile::wide != 0> flows;
    v.wait();
    flows.template across<Tile::real_dv, m>(shared.grad_o().from(64 * group), shared.v()[v.stage]);
    this->remove(tile, walk.is_full(i));
    this->weigh(tile);
    wgmma_wait<0>();
    flows.arrived();
    v.release_as_warp(lane);
#pragma unroll
    for (int j = 0; j < n / 8; ++j) {
      const float2 of = two(by_value, tile, j), key = two(by_key, tile, j);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float dp = flows[4 * j + e] * ((e % 2 ? of.y : of.x) * by_grad_o[e / 2]);
        s[4 * j + e] *= (dp - ends[e / 2].delta) * (e % 2 ? key.y : key.x);
      }
    }
    const F16Parts<Tile::parts> ds(s);
    ds.add_to(dq, shared.k()[k.stage]);
    k.release_as_warp(lane);
    k.next();
    v.next();
  }

  __device__ void run(const Queries90<Tile>& queries) {
    enter(queries);
    const Walk walk = queries.walk(args, this->user);
    for (float& x : dq) x = 0;
    if (walk.count > 0) {
      Ring<Tile::stages> k(shared.k_full());
      Ring<Tile::v_stages> v(shared.v_full());
      barrier_wait(shared.q_full(), 0);
      barrier_wait(shared.grad_o_full(), 0);
#pragma unroll 1
      for (int i = 0; i < walk.count; ++i) iteration(walk, i, k, v);
    }
    this->store(queries, dq);
  }
};

template <NarrowedTile Tile, class User>
__global__ void __launch_bounds__(wide_block.threads, 1)
    queries_f32_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  using Split = F16PartsTile<Tile>;
  static_assert(Tile::m == 128);
  queries_block<QueriesF32Warpgroup90<Split, User>, Split>(args, user);
}

}  // namespace attune

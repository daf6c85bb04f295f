// codegen/cuda/backward_wide_sm90/keys_sm90.cuh — the backward of k and v on Hopper, for heads wider than 128: keys
// stay, four products
//
// A block keeps 64 keys of a key head and iterates over the queries that see them. Two warpgroups divide the products:
// one computes S^T = K Q^T, P and dV += P^T dO; the other computes dP^T = V dO^T and dK += dS^T Q. Each holds one
// gradient in its registers. P goes to the second warpgroup through shared memory, rounded as for its product; if
// scores have a slope, P times the slope goes instead. One producer warp loads keys and queries and prepares the rows'
// lse and delta; another loads values and grad_o.
#pragma once

#include "codegen/cuda/backward_wide_sm90/keys_producer.cuh"
#include "codegen/cuda/parts/warpgroup_sm90.cuh"

namespace attune {

/// What a Tile has. Three warpgroups, with SharedKeys90<Tile>::bytes of shared memory, one block per tile of keys, key
/// head and batch entry of k.
template <class Tile>
concept KeysTile90 = requires {
  requires ElementOf<typename Tile::Element>::bytes == 2;  // bf16, f16
  // Queries and keys; stages of queries.
  requires Tile::m == 64 && Tile::n == 64 && Tile::stages == 3;
  requires Tile::d % 16 == 0 && Tile::d > 128 && Tile::d <= 256 && Tile::dv % 16 == 0 && Tile::dv > 64;
  // A warpgroup packs its operand in that many parts, each while the product of the part before runs.
  requires Tile::parts == 1 || Tile::parts == 2 || Tile::parts == 4;
};

// ---- computing ---------------------------------------------------------------------------------------------------

/// The warpgroup that computes S, P and dV.
template <class Tile, class User>
struct ScoresOfKeys90 : KeysByQueries<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  using Pairs = KeysByQueries<Tile, User>;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at, Pairs::head,
      Pairs::factor, Pairs::origin, Pairs::is_kept;
  static constexpr int m = Tile::m;

  float dv[Tile::dv / 2];
  unsigned p[m / 4], held[16];

  /// The first chunk of the keys goes to registers, as an operand.
  __device__ void hold_keys() {
    const int row = 16 * warp + (lane & 15);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_blocks(held + 4 * i, shared + Shared::held + row * chunk_bytes + (((2 * i + (lane >> 4)) ^ (row & 7)) << 4));
    arrive_as_warp(shared + Shared::k_held, lane);
  }

  /// S^T = K Q^T
  __device__ void scores(int stage) {
    const unsigned q = shared + Shared::q + stage * Shared::q_bytes;
    wgmma_fence();
    across_chunks<Element, Tile::d - Shared::chunk, Tile::n>(s, shared + Shared::k, q + m * chunk_bytes);
    Product<m, Element>::template rs4<Major::k>(s, held, descriptor(q), 1);
    wgmma_commit();
  }

  /// P of queries [8 From, 8 To), as operands in `p`, and what dS takes of P, stored for the other warpgroup.
  template <int From, int To>
  __device__ void weigh(int stage) {
    const unsigned ends = shared + Shared::under + 4 * (stage * m + 2 * (lane & 3));
    float2 under{};
    float low[2];
    this->template each_pair<false, From, To>(
        [&](int i, int e, int r, const typename User::Row& row, const typename User::Col& col, Int q, Int kv, bool) {
          if (e == 0 && r == 0) under = shared_get2(ends + 32 * i);
          const int nth = 4 * i + 2 * r + e;
          const float given = s[nth];
          const float to = probability_of(user, Pair<User>{head, row, col, at, origin, q, kv}, factor,
                                          e ? under.y : under.x, is_kept(nth), given);
          if (e == 0)
            low[r] = to;
          else
            p[2 * i + r] = pack<Element>(low[r], to);
          if constexpr (User::gradient.has_slope)
            s[nth] = is_kept(nth) ? to * user.slope(given, head, row, col, at, origin, q, kv) : 0.0f;
        });
    // With a slope, the other warpgroup gets P times the slope, rounded like P.
    const unsigned into = shared + Shared::weights + 16 * (32 * warp + lane);
#pragma unroll
    for (int i = From / 2; i < To / 2; ++i) {
      unsigned w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = User::gradient.has_slope
                   ? pack<Element>(s[8 * i + 4 * (j / 2) + 2 * (j % 2)], s[8 * i + 4 * (j / 2) + 2 * (j % 2) + 1])
                   : p[4 * i + j];
      shared_put(into + 2048 * i, w[0], w[1], w[2], w[3]);
    }
  }

  /// A step of queries: P = exp2(S - lse), handed to the other warpgroup; dV += P^T dO; then S of the next step.
  __device__ void iteration(int nth, int steps, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    const unsigned words = shared + Shared::words + 4 * Shared::step_words * q.stage;
    const StageBarriers grad_o_now = grad_o.now();
    const int b = uniform(shared_get(words + 4)), h = uniform(shared_get(words + 8));
    this->enter_head(b, h, [&] { return Where{b, h, this->args.q_len, this->args.kv_len}; });
    this->enter_queries(uniform(shared_get(words)));
    const int whole = uniform(shared_get(words + 12));
    // The other warpgroup has taken the weights of the previous iteration.
    weights.acquire(nth & 1);
    wgmma_wait<0>();
    pin(s);
    pin(dv);
    this->remove(whole);
    each_part<Tile::parts>([&]<int Nth>() {
      constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
      weigh<2 * from, 2 * to>(q.stage);
      if constexpr (Nth + 1 == Tile::parts) arrive_as_warp(weights.full, this->lane);
      if constexpr (Nth == 0) grad_o.wait();
      along<Element, m, from, to>(dv, p, shared + Shared::grad_o + grad_o.stage * Shared::grad_o_bytes);
    });
    q.release_as_warp(lane);
    q.next();
    grad_o.next();
    // After the last tile the scores are unused: a branch around the products would serialise them.
    if (nth + 1 < steps) q.wait();
    scores(q.stage);
    wgmma_wait<1>();
    pin(dv);
    arrive_as_warp(grad_o_now.empty(), lane);
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dv) x = 0;
    this->enter_keys(keys.first);
    barrier_wait(shared + Shared::k_full, 0);
    const int steps = uniform(shared_get(shared + Shared::steps));
    const StageBarriers weights{shared + Shared::weights_full + StageBarriers::bytes * warp};  // for this warp
    if (steps > 0) {
      barrier_wait(shared + Shared::q_full, 0);
      pin(dv);
      hold_keys();
      scores(0);
      Ring<Shared::grad_o_stages> grad_o(shared + Shared::grad_o_full);
      Ring<Shared::stages> q(shared + Shared::q_full);
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) iteration(nth, steps, weights, q, grad_o);
      wgmma_wait<0>();
      pin(s);
      pin(dv);
    }
    if constexpr (User::gradient.removes)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dv)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the keys, which only this warpgroup reads.
    named_sync(first_warpgroup_done, warpgroup_threads);
    if (!args.grad_v.to.data) return;
    const unsigned area = shared + Shared::k + 4096 * warp;
    const WarpRows rows{args.grad_v, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.dv};
    stage_sixteen(dv, 1, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// The warpgroup that computes dP, dS and dK.
template <class Tile, class User>
struct FlowsOfKeys90 {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  static constexpr int m = Tile::m;

  const BackwardArgs& args;
  unsigned shared;
  int lane, warp;
  float dp[m / 2], dk[Tile::d / 2];
  unsigned ds[m / 4];

  /// dP^T = V dO^T
  __device__ void flows(int stage) {
    wgmma_fence();
    across<Element, Tile::dv, Tile::n>(dp, shared + Shared::v, shared + Shared::grad_o + stage * Shared::grad_o_bytes);
  }

  /// dS = P (dP - delta) of queries [16 From, 16 To), as operands in `ds`.
  template <int From, int To>
  __device__ void join(int stage) {
    const unsigned ends = shared + Shared::delta + 4 * (stage * m + 2 * (lane & 3)),
                   weights = shared + Shared::weights + 16 * (32 * warp + lane);
#pragma unroll
    for (int i = 2 * From; i < 2 * To; ++i) {
      const float2 delta = shared_get2(ends + 32 * i);
      if (i % 2 == 0) {
        const float4 all = shared_get4(weights + 2048 * (i / 2));
        ds[2 * i] = __float_as_uint(all.x), ds[2 * i + 1] = __float_as_uint(all.y);
        ds[2 * i + 2] = __float_as_uint(all.z), ds[2 * i + 3] = __float_as_uint(all.w);
      }
      const float4 w{low_of<Element>(ds[2 * i]), high_of<Element>(ds[2 * i]), low_of<Element>(ds[2 * i + 1]),
                     high_of<Element>(ds[2 * i + 1])};
      ds[2 * i] = pack<Element>(w.x * (dp[4 * i] - delta.x), w.y * (dp[4 * i + 1] - delta.y));
      ds[2 * i + 1] = pack<Element>(w.z * (dp[4 * i + 2] - delta.x), w.w * (dp[4 * i + 3] - delta.y));
    }
  }

  /// A step of queries: dS = P (dP - delta), with the other warpgroup's P; dK += dS^T Q; then dP of the next step.
  __device__ void iteration(int nth, int steps, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    const StageBarriers q_now = q.now();
    weights.wait(nth & 1);
    wgmma_wait<0>();
    pin(dp);
    pin(dk);
    each_part<Tile::parts>([&]<int Nth>() {
      constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
      join<from, to>(grad_o.stage);
      if constexpr (Nth + 1 == Tile::parts) arrive_as_warp(weights.empty(), lane);
      if constexpr (Nth == 0) q.wait();
      along<Element, m, from, to>(dk, ds, shared + Shared::q + q.stage * Shared::q_bytes);
    });
    grad_o.release_as_warp(lane);
    q.next();
    grad_o.next();
    if (nth + 1 < steps) grad_o.wait();
    flows(grad_o.stage);
    wgmma_wait<1>();
    pin(dk);
    arrive_as_warp(q_now.empty(), lane);
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dk) x = 0;
    barrier_wait(shared + Shared::v_full, 0);
    const int steps = uniform(shared_get(shared + Shared::steps + 4));
    const StageBarriers weights{shared + Shared::weights_full + StageBarriers::bytes * warp};  // for this warp
    if (steps > 0) {
      barrier_wait(shared + Shared::grad_o_full, 0);
      pin(dk);
      flows(0);
      Ring<Shared::grad_o_stages> grad_o(shared + Shared::grad_o_full);
      Ring<Shared::stages> q(shared + Shared::q_full);
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) iteration(nth, steps, weights, q, grad_o);
      wgmma_wait<0>();
      pin(dp);
      pin(dk);
    }
    if constexpr (User::gradient.removes)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dk)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the values, which only this warpgroup reads.
    named_sync(second_warpgroup_done, warpgroup_threads);
    if (!args.grad_k.to.data) return;
    const unsigned area = shared + Shared::v + 4096 * warp;
    const WarpRows rows{args.grad_k, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.d};
    stage_sixteen(dk, args.scale, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// The body of a kernel: a producer warpgroup, the warpgroup Scores and the warpgroup Flows.
template <class Scores, class Flows, class Tile, class User>
__device__ inline void keys_block(const BackwardArgs& args, const User& user) {
  using Shared = SharedKeys90<Tile>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const unsigned shared = shared_address(memory);
  if (threadIdx.x == 0) {
    Ring<Shared::stages>::init(shared + Shared::q_full, 1, 8);
    Ring<Shared::grad_o_stages>::init(shared + Shared::grad_o_full, 1, 8);
    for (int i = 0; i < 8; ++i) barrier_init(shared + Shared::weights_full + 8 * i, 1);
    barrier_init(shared + Shared::k_full, 1);
    barrier_init(shared + Shared::v_full, 1);
    barrier_init(shared + Shared::k_held, 4);
    barrier_init_done();
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup_threads),
            warp = uniform(static_cast<int>(threadIdx.x) / 32 % 4), lane = static_cast<int>(threadIdx.x) % 32;
  const Keys90<Tile> keys(args);
  if (group == 0) {
    registers_down<wide_block.loading>();
    LoaderKeys90<Tile, User> loader{args, user, shared, lane, keys};
    if (warp == 0) loader.template run<true>();
    if (warp == 1) loader.template run<false>();
  } else {
    registers_up<wide_block.computing>();
    if (group == 1)
      Scores{{args, user, shared, 0, lane, warp}}.run(keys);
    else
      Flows{args, shared, lane, warp}.run(keys);
  }
}

template <KeysTile90 Tile, class User>
__global__ void __launch_bounds__(wide_block.threads, 1)
    keys_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  keys_block<ScoresOfKeys90<Tile, User>, FlowsOfKeys90<Tile, User>, Tile>(args, user);
}

}  // namespace attune

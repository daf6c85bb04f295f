// codegen/cuda/backward_wide_sm90/keys_sm90.cuh — the backward of k and v on Hopper, for heads wider than 128: keys
// stay, four products
//
// A block keeps 64 keys of a key head and iterates over the queries that see them. Two warpgroups divide the products:
// one computes S^T = K Q^T, P and dV += P^T dO; the other computes dP^T = V dO^T and dK += dS^T Q. Each holds one
// gradient in its registers. P goes to the second warpgroup through shared memory, rounded as for its product; if
// scores have a slope, P times the slope goes instead. Under a prob mod f(P) = c P, dV takes c P, and dS is
// P (c dP - delta). The first warpgroup hands dropout's decisions to the second along with P; both compute any other c.
// One producer warp loads keys and queries and prepares the rows' lse and delta; another loads values and grad_o.
#pragma once

#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/cuda/backward_wide_sm90/split.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/warpgroup_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// What a Tile has. Three warpgroups, with SharedKeys90<Tile>::at.bytes of shared memory, one block per tile of keys,
/// key head and batch entry of k.
template <class Tile>
concept KeysTile90 = requires {
  requires ElementOf<typename Tile::Element>::bytes == 2;  // bf16, f16
  // Queries and keys; stages of queries.
  requires Tile::m == 64 && Tile::n == 64 && Tile::stages == 3;
  requires Tile::d % 16 == 0 && Tile::d > 128 && Tile::d <= 256 && Tile::dv % 16 == 0 && Tile::dv > 64;
  // A warpgroup packs its operand in that many parts, each while the product of the part before runs.
  requires Tile::parts == 1 || Tile::parts == 2 || Tile::parts == 4;
};

/// The shared memory of a block: addresses, from layout/.
template <class Tile>
struct SharedKeys90 {
  using Element = typename Tile::Element;
  static constexpr int m = Tile::m, n = Tile::n, stages = Tile::stages;
  static constexpr KeysLayout90 at = is_split<Tile> ? keys_layout_f32(m, n, Tile::d, Tile::dv, stages)
                                                    : KeysLayout90{.m = m,
                                                                   .n = n,
                                                                   .d = Tile::d,
                                                                   .dv = Tile::dv,
                                                                   .stages = stages,
                                                                   .element = ElementOf<Element>::bytes};
  static constexpr int grad_o_stages = at.grad_o_stages;

  unsigned base;

  __device__ SharedTile<n, Tile::d, Element> k() const { return {base + at.k}; }
  __device__ SharedTile<n, Tile::dv, Element> v() const { return {base + at.v}; }
  __device__ SharedTile<m, Tile::d, Element> q() const { return {base + at.q}; }
  __device__ SharedTile<m, Tile::dv, Element> grad_o() const { return {base + at.grad_o}; }
  __device__ unsigned held() const { return base + at.held; }
  __device__ unsigned weights() const { return base + at.weights; }
  __device__ unsigned under() const { return base + at.under; }
  __device__ unsigned delta() const { return base + at.delta; }
  __device__ unsigned q_factors() const { return base + at.q_factors; }
  __device__ unsigned grad_o_factors() const { return base + at.grad_o_factors; }
  __device__ unsigned words() const { return base + at.words; }
  __device__ unsigned kept() const { return base + at.kept; }
  /// Of both warpgroups.
  __device__ unsigned steps() const { return base + at.steps; }
  __device__ unsigned q_full() const { return base + at.q_full; }
  __device__ unsigned grad_o_full() const { return base + at.grad_o_full; }
  __device__ StageBarriers weights_full(int warp) const {
    return {base + at.weights_full + StageBarriers::bytes * warp};
  }
  __device__ unsigned k_full() const { return base + at.k_full; }
  __device__ unsigned v_full() const { return base + at.v_full; }
  __device__ unsigned k_held() const { return base + at.k_held; }
  /// One thread initialises the barriers.
  __device__ void init() const {
    Ring<stages>::init(q_full(), 1, 8);
    Ring<grad_o_stages>::init(grad_o_full(), 1, 8);
    for (int i = 0; i < 4; ++i) weights_full(i).init(1, 1);
    barrier_init(k_full(), 1);
    barrier_init(v_full(), 1);
    barrier_init(k_held(), 4);
    barrier_init_done();
  }
};

// ---- which keys --------------------------------------------------------------------------------------------------

/// The keys of a block. Sets (a key head each) come in sections that fit into the cache; within a section the first
/// keys come first, because a causal mask gives them the longest walks.
template <class Tile>
struct Keys90 {
  int b, kv_head, first;

  __device__ explicit Keys90(const BackwardArgs& args) {
    const Sections<long long> sections{args.kv_heads * (args.kv_shared ? 1 : args.batch), max(args.section, 1),
                                       (args.kv_len + Tile::n - 1) / Tile::n};
    const auto at = sections.at(blockIdx.x);
    b = at.set / args.kv_heads;
    kv_head = at.set % args.kv_heads;
    first = at.nth * Tile::n;
  }
};

// ---- loading -----------------------------------------------------------------------------------------------------

/// A producer warp. One warp loads keys and queries, the other loads values and grad_o.
template <class Tile, class User>
struct LoaderKeys90 {
  using Shared = SharedKeys90<Tile>;
  static constexpr int m = Tile::m, n = Tile::n, rows = m / 32;

  const BackwardArgs& args;
  const User& user;
  Shared shared;
  int lane;
  Keys90<Tile> keys;

  struct Reader {
    Where at;
    typename User::Head head;
    Walk walk;
  };
  __device__ int readers() const { return args.kv_shared ? args.group * args.batch : args.group; }
  __device__ Reader reader(int nth) const {
    Reader out;
    const int b = args.kv_shared ? nth / args.group : keys.b;
    const Entry entry = entry_of<Tile>(args, b);
    out.at = entry.at(b, keys.kv_head * args.group + nth % args.group);
    out.head = user.head(out.at);
    out.walk = walk_of_keys<m>(user, entry, out.at, out.head, keys.first, min(keys.first + n, entry.keys.length));
    return out;
  }

  __device__ RowEnd end(const Reader& of, int tile, int nth) const {
    const int q = tile * m + nth;
    if (q >= args.q_len) return no_row();
    const auto of_row = [&](const Rows& all) {
      return __ldg(all.data + of.at.b * all.batch + of.at.h * all.head + q * all.position);
    };
    const Int origin = args.q_offset + tile * m, at = args.q_offset + q;
    return row_end(user, of_row(args.lse), user.rest(of.head, user.row(of.head, of.at, at), of.at, origin, at),
                   of_row(args.delta));
  }

  /// The factors of a row of queries and of grad_o.
  __device__ float2 factors_of(const Reader& of, int line) const {
    const auto factor = [&](const Strided& all) { return factor_of_row(all, of.at.b, of.at.h, line); };
    return {factor(args.q), factor(args.grad_o)};
  }

  /// Loads a TMA box of this block's keys or values.
  __device__ void load_own(unsigned into, const TensorMap& map, unsigned full, int chunk) const {
    load_box(into, map, full, chunk * shared.at.chunk, keys.first, keys.kv_head, args.kv_shared ? 0 : keys.b);
  }
  /// Loads a tile of queries or of grad_o.
  template <class Into>
  __device__ void load(Into into, const TensorMap& map, unsigned full, const Where& at, int tile) const {
    barrier_expect(full, into.bytes);
    for (int c = 0; c < into.chunks; ++c)
      load_box(into + c * into.chunk_size, map, full, c * into.chunk, tile * m, at.h, at.b);
  }

  template <bool OfQueries>
  __device__ void load_keys(int steps) const {
    const unsigned full = OfQueries ? shared.k_full() : shared.v_full();
    shared_put(shared.steps() + (OfQueries ? 0 : 4), steps);
    if (steps == 0) return barrier_arrive(full);
    barrier_expect(full, OfQueries ? shared.at.k_bytes : shared.at.v_bytes);
    if constexpr (OfQueries) {
      constexpr int held = Shared::at.held_chunks;
      if constexpr (held > 0) load_own(shared.held(), args.k_map, full, 0);
      for (int c = held; c < shared.at.d_chunks; ++c)
        load_own(shared.k() + (c - held) * n * chunk_bytes, args.k_map, full, c);
    } else {
      for (int c = 0; c < shared.at.dv_chunks; ++c) load_own(shared.v() + c * n * chunk_bytes, args.v_map, full, c);
    }
  }

  template <bool OfQueries>
  __device__ void run() {
    constexpr int stages = OfQueries ? Shared::stages : Shared::grad_o_stages;
    int steps = 0;
    for (int g = 0; g < readers(); ++g) steps += reader(g).walk.count;
    if (elected()) load_keys<OfQueries>(steps);
    __syncwarp();
    int nth = 0;
    Ring<stages> ring(OfQueries ? shared.q_full() : shared.grad_o_full());
#pragma unroll 1
    for (int g = 0; g < readers(); ++g) {
      const Reader of = reader(g);
#pragma unroll 1
      for (int i = 0; i < of.walk.count; ++i, ++nth) {
        const int tile = of.walk.tile(i);
        // lse and delta of this lane's rows are read before the stage is free.
        RowEnd ends[rows];
        float2 factors[rows];
#pragma unroll
        for (int j = 0; j < rows; ++j) ends[j] = end(of, tile, 32 * j + lane);
        if constexpr (is_split<Tile>)
#pragma unroll
          for (int j = 0; j < rows; ++j) factors[j] = factors_of(of, tile * m + 32 * j + lane);
        ring.acquire();
        // The first chunk of the keys lies in the last stage and has to leave it first.
        if (OfQueries && Shared::at.held_chunks > 0 && nth == stages - 1) barrier_wait(shared.k_held(), 0);
#pragma unroll
        for (int j = 0; j < rows; ++j)
          shared_put((OfQueries ? shared.under() : shared.delta()) + 4 * (ring.stage * m + 32 * j + lane),
                     __float_as_int(OfQueries ? ends[j].under : ends[j].delta));
        if constexpr (is_split<Tile>)
#pragma unroll
          for (int j = 0; j < rows; ++j)
            shared_put((OfQueries ? shared.q_factors() : shared.grad_o_factors()) +
                           8 * (ring.stage * m + 32 * j + lane),
                       factors[j].x, factors[j].y);
        if constexpr (OfQueries) {
          const bool whole = of.walk.is_full(i) && keys.first + n <= args.kv_len;
          const int word = lane == 0 ? tile : lane == 1 ? of.at.b : lane == 2 ? of.at.h : whole;
          if (lane < Shared::at.step_words)
            shared_put(shared.words() + 4 * (ring.stage * shared.at.step_words + lane), word);
        }
        __syncwarp();
        if (elected()) {
          if constexpr (OfQueries)
            load(shared.q()[ring.stage], args.q_map, ring.full(), of.at, tile);
          else
            load(shared.grad_o()[ring.stage], args.grad_o_map, ring.full(), of.at, tile);
        }
        ring.next();
      }
    }
  }
};

// ---- computing ---------------------------------------------------------------------------------------------------

/// A thread's pairs in either warpgroup: thread t of both has the same.
template <class Tile, class User>
struct PairsOfKeys90 : KeysByQueries<Tile, User, SharedKeys90<Tile>> {
  /// Starts a step, whose queries have loaded. Returns true if no pair is masked out.
  __device__ int enter(int stage) {
    const unsigned words = this->shared.words() + 4 * this->shared.at.step_words * stage;
    const int b = uniform(shared_get(words + 4)), h = uniform(shared_get(words + 8));
    this->enter_head(b, h, [&] { return Where{b, h, this->args.q_len, this->args.kv_len}; });
    this->enter_queries(uniform(shared_get(words)));
    return uniform(shared_get(words + 12));
  }

  /// Dropout's decisions go from the first warpgroup to the second, with the weights.
  __device__ unsigned kept_word() const { return this->shared.kept() + 4 * (32 * this->warp + this->lane); }
  __device__ void hand_kept() const { shared_put(kept_word(), static_cast<int>(this->kept.of_queries[0])); }
  __device__ void take_kept() { this->kept.of_queries[0] = static_cast<unsigned>(shared_get(kept_word())); }
};

/// A thread of a warpgroup that computes nothing of the mod.
template <class Tile, class User>
struct ThreadOfKeys90 {
  const BackwardArgs& args;
  const User& user;
  SharedKeys90<Tile> shared;
  int group, lane, warp;
};

/// The warpgroup that computes S, P and dV.
template <class Tile, class User>
struct ScoresOfKeys90 : PairsOfKeys90<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  using Pairs = PairsOfKeys90<Tile, User>;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at, Pairs::head,
      Pairs::factor, Pairs::origin, Pairs::is_kept;
  static constexpr int m = Tile::m;
  /// dS takes another number of a pair than dV: P before prob(), times the slope of the score.
  static constexpr bool hands_other = User::gradient.has_slope || User::traits.has_prob;

  float dv[Tile::dv / 2];
  unsigned p[m / 4], held[16];

  /// The first chunk of the keys goes to registers, as an operand.
  __device__ void hold_keys() {
    const int row = 16 * warp + (lane & 15);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      load_blocks(held + 4 * i, shared.held() + row * chunk_bytes + (((2 * i + (lane >> 4)) ^ (row & 7)) << 4));
    arrive_as_warp(shared.k_held(), lane);
  }

  /// S^T = K Q^T
  __device__ void scores(int stage) {
    const auto q = shared.q()[stage];
    wgmma_fence();
    across_chunks<Element, Tile::d - q.chunk, Tile::n>(s, shared.k(), q + q.chunk_size);
    Product<m, Element>::template rs4<Major::k>(s, held, descriptor(q), 1);
    wgmma_commit();
  }

  /// prob(P) of queries [8 From, 8 To), as operands in `p`, and what dS takes of P, stored for the other warpgroup.
  template <int From, int To>
  __device__ void weigh(int stage) {
    const unsigned ends = shared.under() + 4 * (stage * m + 2 * (lane & 3));
    float2 under{};
    float low[2];
    this->template each_pair<false, From, To>(
        [&](int i, int e, int r, const typename User::Row& row, const typename User::Col& col, Int q, Int kv, bool) {
          if (e == 0 && r == 0) under = shared_get2(ends + 32 * i);
          const int nth = 4 * i + 2 * r + e;
          const float given = s[nth];
          const float to = probability_of(user, Pair<User>{head, row, col, at, origin, q, kv}, factor,
                                          e ? under.y : under.x, is_kept(nth), given);
          float of_v = to;
          if constexpr (User::traits.has_prob) of_v = this->prob_of(to, i, e, r, row, col, q, kv);
          if (e == 0)
            low[r] = of_v;
          else
            p[2 * i + r] = pack<Element>(low[r], of_v);
          if constexpr (User::gradient.has_slope)
            s[nth] = is_kept(nth) ? to * user.slope(given, head, row, col, at, origin, q, kv) : 0.0f;
          else if constexpr (hands_other)
            s[nth] = to;
        });
    const unsigned into = shared.weights() + 16 * (32 * warp + lane);
#pragma unroll
    for (int i = From / 2; i < To / 2; ++i) {
      unsigned w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = hands_other
                   ? pack<Element>(s[8 * i + 4 * (j / 2) + 2 * (j % 2)], s[8 * i + 4 * (j / 2) + 2 * (j % 2) + 1])
                   : p[4 * i + j];
      shared_put(into + 2048 * i, w[0], w[1], w[2], w[3]);
    }
  }

  /// A step of queries: P = exp2(S - lse), handed to the other warpgroup; dV += P^T dO; then S of the next step.
  __device__ void iteration(int nth, int steps, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    const StageBarriers grad_o_now = grad_o.now();
    const int whole = this->enter(q.stage);
    this->draw();
    // The other warpgroup has taken the weights of the previous iteration.
    weights.acquire(nth & 1);
    if constexpr (User::traits.drops) this->hand_kept();
    wgmma_wait<0>(s, dv);
    this->remove(whole);
    each_part<Tile::parts>([&]<int Nth>() {
      constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
      weigh<2 * from, 2 * to>(q.stage);
      if constexpr (Nth + 1 == Tile::parts) arrive_as_warp(weights.full, this->lane);
      if constexpr (Nth == 0) grad_o.wait();
      wgmma<from, to>(dv, p, shared.grad_o()[grad_o.stage]);
    });
    q.release_as_warp(lane);
    q.next();
    grad_o.next();
    // After the last tile the scores are unused: a branch around the products would serialise them.
    if (nth + 1 < steps) q.wait();
    scores(q.stage);
    wgmma_wait<1>(dv);
    arrive_as_warp(grad_o_now.empty(), lane);
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dv) x = 0;
    this->enter_keys(keys.first);
    barrier_wait(shared.k_full(), 0);
    const int steps = uniform(shared_get(shared.steps()));
    const StageBarriers weights = shared.weights_full(warp);  // for this warp
    if (steps > 0) {
      barrier_wait(shared.q_full(), 0);
      pin(dv);
      hold_keys();
      scores(0);
      Ring<Shared::grad_o_stages> grad_o(shared.grad_o_full());
      Ring<Shared::stages> q(shared.q_full());
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) iteration(nth, steps, weights, q, grad_o);
      wgmma_wait<0>(s, dv);
    }
    if constexpr (User::gradient.removes)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dv)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the keys, which only this warpgroup reads.
    named_sync(first_warpgroup_done, warpgroup_threads);
    if (!args.grad_v.to.data) return;
    const unsigned area = shared.k() + 4096 * warp;
    const WarpRows rows{args.grad_v, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.dv};
    stage_sixteen(dv, 1, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// What FlowsOfKeys90 has of its pairs: with a prob mod, all that this reads.
template <class Tile, class User>
using FlowPairs90 = Either<User::traits.has_prob, PairsOfKeys90<Tile, User>, ThreadOfKeys90<Tile, User>>;

/// The warpgroup that computes dP, dS and dK.
template <class Tile, class User>
struct FlowsOfKeys90 : FlowPairs90<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = SharedKeys90<Tile>;
  using Pairs = FlowPairs90<Tile, User>;
  using Pairs::args, Pairs::shared, Pairs::lane, Pairs::warp;
  static constexpr int m = Tile::m;

  float dp[m / 2], dk[Tile::d / 2];
  unsigned ds[m / 4];

  /// dP^T = V dO^T
  __device__ void flows(int stage) {
    wgmma_fence();
    wgmma(dp, shared.v(), shared.grad_o()[stage]);
  }

  /// dP times prob'(P), of queries [8 From, 8 To).
  template <int From, int To>
  __device__ void flow_past_prob() {
    if constexpr (User::traits.has_prob)
      this->template each_pair<false, From, To>(
          [&](int i, int e, int r, const typename User::Row& row, const typename User::Col& col, Int q, Int kv, bool) {
            // A multiple of P has a slope that does not depend on P.
            dp[4 * i + 2 * r + e] *= this->prob_slope_of(1, i, e, r, row, col, q, kv);
          });
  }

  /// dS = P (dP - delta) of queries [16 From, 16 To), as operands in `ds`.
  template <int From, int To>
  __device__ void join(int stage) {
    flow_past_prob<2 * From, 2 * To>();
    const unsigned ends = shared.delta() + 4 * (stage * m + 2 * (lane & 3)),
                   weights = shared.weights() + 16 * (32 * warp + lane);
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
      ds[2 * i] = pack<Element>(ds_of<User>(w.x, dp[4 * i], delta.x), ds_of<User>(w.y, dp[4 * i + 1], delta.y));
      ds[2 * i + 1] = pack<Element>(ds_of<User>(w.z, dp[4 * i + 2], delta.x), ds_of<User>(w.w, dp[4 * i + 3], delta.y));
    }
  }

  /// A step of queries: dS = P (dP - delta), with the other warpgroup's P; dK += dS^T Q; then dP of the next step.
  __device__ void iteration(int nth, int steps, StageBarriers weights, Ring<Shared::stages>& q,
                            Ring<Shared::grad_o_stages>& grad_o) {
    const StageBarriers q_now = q.now();
    weights.wait(nth & 1);
    // The other warpgroup has waited for these queries.
    if constexpr (User::traits.has_prob) this->enter(q.stage);
    if constexpr (User::traits.drops) this->take_kept();
    wgmma_wait<0>(dp, dk);
    each_part<Tile::parts>([&]<int Nth>() {
      constexpr int from = Nth * (m / 16) / Tile::parts, to = (Nth + 1) * (m / 16) / Tile::parts;
      join<from, to>(grad_o.stage);
      if constexpr (Nth + 1 == Tile::parts) arrive_as_warp(weights.empty(), lane);
      if constexpr (Nth == 0) q.wait();
      wgmma<from, to>(dk, ds, shared.q()[q.stage]);
    });
    grad_o.release_as_warp(lane);
    q.next();
    grad_o.next();
    if (nth + 1 < steps) grad_o.wait();
    flows(grad_o.stage);
    wgmma_wait<1>(dk);
    arrive_as_warp(q_now.empty(), lane);
  }

  __device__ void run(const Keys90<Tile>& keys) {
    for (float& x : dk) x = 0;
    if constexpr (User::traits.has_prob) this->enter_keys(keys.first);
    barrier_wait(shared.v_full(), 0);
    const int steps = uniform(shared_get(shared.steps() + 4));
    const StageBarriers weights = shared.weights_full(warp);  // for this warp
    if (steps > 0) {
      barrier_wait(shared.grad_o_full(), 0);
      pin(dk);
      flows(0);
      Ring<Shared::grad_o_stages> grad_o(shared.grad_o_full());
      Ring<Shared::stages> q(shared.q_full());
#pragma unroll 1
      for (int nth = 0; nth < steps; ++nth) iteration(nth, steps, weights, q, grad_o);
      wgmma_wait<0>(dp, dk);
    }
    if constexpr (User::gradient.removes)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dk)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of the values, which only this warpgroup reads.
    named_sync(second_warpgroup_done, warpgroup_threads);
    if (!args.grad_k.to.data) return;
    const unsigned area = shared.v() + 4096 * warp;
    const WarpRows rows{args.grad_k, keys.b, keys.kv_head, {0, args.kv_len}, keys.first + 16 * warp, args.d};
    stage_sixteen(dk, args.scale, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// The body of a kernel: a producer warpgroup, the warpgroup Scores and the warpgroup Flows.
template <class Scores, class Flows, class Tile, class User>
__device__ inline void keys_block(const BackwardArgs& args, const User& user) {
  using Shared = SharedKeys90<Tile>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init();
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
      Flows{{args, user, shared, 0, lane, warp}}.run(keys);
  }
}

template <KeysTile90 Tile, class User>
__global__ void __launch_bounds__(wide_block.threads, 1)
    keys_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  keys_block<ScoresOfKeys90<Tile, User>, FlowsOfKeys90<Tile, User>, Tile>(args, user);
}

}  // namespace attune

// codegen/cuda/backward_wide_sm90/queries_sm90.cuh — the backward of q on Hopper, for heads wider than 128: queries
// stay, three products
//
// A block keeps 128 queries of a head and iterates over the keys that they see, as forward_sm90.cuh does. Each of two
// consumer warpgroups has 64 queries. It computes S = Q K^T and dP = dO V^T from shared memory; dS stays in registers
// as an operand of dQ += dS K. Under a prob mod c P, dS is P (c dP - delta). A warpgroup issues the products of the
// next keys before it waits for any, and computes probabilities while dP is under way. One producer thread loads.
#pragma once

#include "codegen/cuda/backward_wide_sm90/layout.cuh"
#include "codegen/cuda/backward_wide_sm90/split.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// What a Tile has. Three warpgroups, with SharedQueries90<Tile>::at.bytes of shared memory, one block per tile of
/// queries, head and batch entry.
template <class Tile>
concept QueriesTile90 = requires {
  requires ElementOf<typename Tile::Element>::bytes == 2;  // bf16, f16
  // Queries and keys; stages of keys and of values.
  requires Tile::m == 128 && Tile::n == 64 && Tile::stages == 2 && (Tile::v_stages == 1 || Tile::v_stages == 2);
  requires Tile::d % 16 == 0 && Tile::d <= 256 && Tile::dv % 16 == 0 && Tile::dv <= 256;
  // As in keys_sm90.cuh.
  requires Tile::parts == 1 || Tile::parts == 2 || Tile::parts == 4;
};

/// The shared memory of a block: addresses, from layout/.
template <class Tile>
struct SharedQueries90 {
  using Element = typename Tile::Element;
  static constexpr int m = Tile::m, n = Tile::n;
  static constexpr QueriesLayout90 at = is_split<Tile>
                                            ? queries_layout_f32(m, n, Tile::d, Tile::dv, Tile::stages, Tile::v_stages)
                                            : QueriesLayout90{.m = m,
                                                              .n = n,
                                                              .d = Tile::d,
                                                              .dv = Tile::dv,
                                                              .stages = Tile::stages,
                                                              .v_stages = Tile::v_stages,
                                                              .element = ElementOf<Element>::bytes};

  unsigned base;

  __device__ SharedTile<m, Tile::d, Element> q() const { return {base + at.q}; }
  __device__ SharedTile<m, Tile::dv, Element> grad_o() const { return {base + at.grad_o}; }
  __device__ SharedTile<n, Tile::d, Element> k() const { return {base + at.k}; }
  __device__ SharedTile<n, Tile::dv, Element> v() const { return {base + at.v}; }
  __device__ unsigned q_full() const { return base + at.q_full; }
  __device__ unsigned grad_o_full() const { return base + at.grad_o_full; }
  __device__ unsigned k_full() const { return base + at.k_full; }
  __device__ unsigned v_full() const { return base + at.v_full; }
  /// One thread initialises the barriers.
  __device__ void init() const {
    barrier_init(q_full(), 1);
    barrier_init(grad_o_full(), 1);
    Ring<Tile::stages>::init(k_full(), 1, 8);
    Ring<Tile::v_stages>::init(v_full(), 1, 8);
    barrier_init_done();
  }
};

/// The queries of a block. Heads come in sections that fit into the cache; within a section the last queries come
/// first, because a causal mask gives them the longest walks.
template <class Tile>
struct Queries90 {
  int b, h, tile;

  __device__ explicit Queries90(const BackwardArgs& args) {
    const Sections<long long> sections{args.q_heads * args.batch, max(args.section, 1),
                                       (args.q_len + Tile::m - 1) / Tile::m};
    const auto at = sections.at(blockIdx.x);
    b = at.set / args.q_heads;
    h = at.set % args.q_heads;
    tile = sections.of_set - 1 - at.nth;
  }
  template <class User>
  __device__ Walk walk(const BackwardArgs& args, const User& user) const {
    const Entry entry = entry_of<Tile>(args, b);
    const Where at = entry.at(b, h);
    const int first = tile * Tile::m;
    return walk_of<Tile>(args, user, entry, at, user.head(at),
                         {first, min(first + Tile::m, entry.queries.length), 0, 1});
  }
};

/// The producer thread.
template <class Tile, class User>
__device__ inline void load_queries(const BackwardArgs& args, const User& user, SharedQueries90<Tile> shared,
                                    const Queries90<Tile>& queries) {
  const Walk walk = queries.walk(args, user);
  if (walk.count == 0) return;
  const int kv_head = queries.h / args.group, kv_batch = args.kv_shared ? 0 : queries.b;
  struct Box {
    int row, h, b;
  };
  const auto load = [&](auto into, const TensorMap& map, unsigned full, Box of) {
    barrier_expect(full, into.bytes);
    for (int c = 0; c < into.chunks; ++c)
      load_box(into + c * into.chunk_size, map, full, c * into.chunk, of.row, of.h, of.b);
  };
  const Box own{queries.tile * Tile::m, queries.h, queries.b};
  Ring<Tile::stages> k(shared.k_full());
  Ring<Tile::v_stages> v(shared.v_full());
  load(shared.q(), args.q_map, shared.q_full(), own);
#pragma unroll 1
  for (int i = 0; i < walk.count; ++i) {
    const Box keys{walk.tile(i) * Tile::n, kv_head, kv_batch};
    k.acquire();
    load(shared.k()[k.stage], args.k_map, k.full(), keys);
    if (i == 0) load(shared.grad_o(), args.grad_o_map, shared.grad_o_full(), own);
    v.acquire();
    load(shared.v()[v.stage], args.v_map, v.full(), keys);
    k.next();
    v.next();
  }
}

/// A thread's registers while its warpgroup computes 64 queries. Thread t of the warpgroup holds query t / 4 % 8 + 16
/// (t / 32) and the query 8 below; of these, keys 8 i + 2 (t % 4) and the next.
template <class Tile, class User>
struct QueriesByKeys {
  using Shared = SharedQueries90<Tile>;
  using Row = typename User::Row;
  using Col = typename User::Col;
  static constexpr int m = Tile::m, n = Tile::n;
  /// If exponents are multiples of scores, a masked-out score becomes -inf; otherwise each pair has a bit.
  static constexpr bool removes_scores = User::traits.scaled;
  template <bool Partial>
  static constexpr bool shares = Shareable<Col> && (Partial || in_scores<Col>);
  static constexpr bool drops = User::traits.drops;

  const BackwardArgs& args;
  const User& user;
  Shared shared;
  int group, lane, warp;
  float s[n / 2];
  unsigned removed[n / 64];
  KeptByQueries<drops ? n : 0> kept;  ///< by dropout, of this tile
  Where at;
  typename User::Head head;
  float factor;
  int first, origin;  ///< this thread's first query, and the tile's
  Row row[2];
  RowEnd ends[2];

  __device__ void enter(const Queries90<Tile>& queries) {
    at = {queries.b, queries.h, args.q_len, args.kv_len};
    head = user.head(at);
    factor = factor_of(user, head);
    origin = args.q_offset + queries.tile * m;
    const int nth = queries.tile * m + 64 * group + 16 * warp + lane / 4;
    first = args.q_offset + nth;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Int q(first, 8 * r);
      row[r] = user.row(head, at, q);
      ends[r] = no_row();
      if (nth + 8 * r >= args.q_len) continue;
      const auto of = [&](const Rows& all) {
        return __ldg(all.data + at.b * all.batch + at.h * all.head + (nth + 8 * r) * all.position);
      };
      ends[r] = row_end(user, of(args.lse), user.rest(head, row[r], at, origin, q), of(args.delta));
    }
  }

  /// Calls f(i, e, r, col, q, kv) for this thread's pairs: key 8 i + e for i in [From, To), query 8 r.
  template <bool Partial, int From = 0, int To = n / 8, class F>
  __device__ void each_pair(int tile, const F& f) {
    const int kv0 = tile * n + 2 * (lane & 3);
    // If lanes share columns, lane / 4 has columns 8 i + e with 2 i + e = 8 j + lane / 4.
    Col cols[(n + 31) / 32];
    if constexpr (shares<Partial>) {
#pragma unroll
      for (int j = From / 4; j < (To + 3) / 4; ++j) {
        const int nth = 8 * j + lane / 4;
        cols[j] = user.col(head, at, origin, Int(kv0 + 8 * (nth / 2) + nth % 2));
      }
    }
#pragma unroll
    for (int i = From; i < To; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Int kv(kv0, 8 * i + e);
        Col col;
        if constexpr (shares<Partial>)
          col = cols[(2 * i + e) / 8].of_lane((2 * i + e) % 8 * 4 + (lane & 3));
        else
          col = user.col(head, at, origin, kv);
#pragma unroll
        for (int r = 0; r < 2; ++r) f(i, e, r, col, Int(first, 8 * r), kv);
      }
  }

  /// Masks out pairs.
  __device__ void remove(int tile, bool whole) {
    if constexpr (!removes_scores)
      for (unsigned& x : removed) x = 0;
    if (whole) return;
    const int kv0 = tile * n + 2 * (lane & 3);
    const Reach<User> reach[2] = {{user, head, row[0], at, Int(first), kv0},
                                  {user, head, row[1], at, Int(first, 8), kv0}};
    each_pair<true>(tile, [&](int i, int e, int r, const Col& col, Int q, Int kv) {
      bool kept = reach[r].holds(8 * i + e);
      if constexpr (User::traits.has_keep) kept = kept && user.keep(head, row[r], col, at, q, kv);
      const int nth = 4 * i + 2 * r + e;
      if constexpr (removes_scores)
        s[nth] = kept ? s[nth] : -infinity;
      else
        removed[nth / 32] |= kept ? 0u : 1u << nth % 32;
    });
  }
  __device__ bool is_kept(int nth) const { return removes_scores || !(removed[nth / 32] & 1u << nth % 32); }

  /// P = exp2(S - lse), times the slope if scores have one.
  __device__ void weigh(int tile) {
    each_pair<false>(tile, [&](int i, int e, int r, const Col& col, Int q, Int kv) {
      const int nth = 4 * i + 2 * r + e;
      float p = probability_of(user, Pair<User>{head, row[r], col, at, origin, q, kv}, factor, ends[r].under,
                               is_kept(nth), s[nth]);
      if constexpr (User::gradient.has_slope)
        p = is_kept(nth) ? p * user.slope(s[nth], head, row[r], col, at, origin, q, kv) : 0.0f;
      s[nth] = p;
    });
  }

  /// Draws which pairs of a tile dropout keeps.
  __device__ void draw(int tile) {
    if constexpr (drops)
      kept.template draw<true>(KeptDraws<User>(user, head, at), first + 8 * (lane & 1), tile * n, lane);
  }
  /// dP times prob'(P), of keys [8 From, 8 To).
  template <int From, int To>
  __device__ void flow_past_prob(int tile, float (&dp)[n / 2]) {
    if constexpr (User::traits.has_prob)
      each_pair<false, From, To>(tile, [&](int i, int e, int r, const Col& col, Int q, Int kv) {
        const int nth = 4 * i + 2 * r + e;
        const Pair<User> pair{head, row[r], col, at, origin, q, kv};
        if constexpr (drops)
          dp[nth] *= prob_slope_of(user, DrawnPair<User>{pair, kept.holds(i, r, e)}, s[nth]);
        else
          dp[nth] *= prob_slope_of(user, pair, s[nth]);
      });
  }

  /// Stores dQ.
  template <int Half>
  __device__ void store(const Queries90<Tile>& queries, const float (&dq)[Half]) const {
    if (!args.grad_q.to.data) return;
    if constexpr (User::gradient.removes || is_split<Tile>)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dq)) && lane == 0) *args.non_finite = 1;
    // Results pass through the memory of this warpgroup's queries, 16 KB in two chunks, once the warpgroup is done.
    if (group == 0)
      named_sync(first_warpgroup_done, warpgroup_threads);
    else
      named_sync(second_warpgroup_done, warpgroup_threads);
    const unsigned area = shared.q() + warp / 2 * (m * chunk_bytes) + group * 64 * chunk_bytes + warp % 2 * 4096;
    const int row = queries.tile * m + 64 * group + 16 * warp;
    const WarpRows rows{args.grad_q, at.b, at.h, {0, args.q_len}, row, args.d};
    stage_sixteen(dq, args.scale, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
  }
};

/// The same with the products of bf16 or f16.
template <class Tile, class User>
struct QueriesWarpgroup90 : QueriesByKeys<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = SharedQueries90<Tile>;
  using Pairs = QueriesByKeys<Tile, User>;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::group, Pairs::lane, Pairs::m, Pairs::n, Pairs::s, Pairs::ends;

  float dp[n / 2], dq[Tile::d / 2];
  unsigned ds[n / 4];

  // ---- products ----

  /// S = Q K^T
  __device__ void scores(int stage) {
    wgmma_fence();
    wgmma(s, shared.q().from(64 * group), shared.k()[stage]);
  }
  /// dP = dO V^T
  __device__ void flows(int stage) {
    wgmma_fence();
    wgmma(dp, shared.grad_o().from(64 * group), shared.v()[stage]);
  }

  /// dS = P (dP - delta) of keys [16 From, 16 To), as operands in `ds`.
  template <int From, int To>
  __device__ void join(int tile) {
    this->template flow_past_prob<2 * From, 2 * To>(tile, dp);
#pragma unroll
    for (int i = 2 * From; i < 2 * To; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int nth = 4 * i + 2 * r;
        ds[2 * i + r] = pack<Element>(ds_of<User>(s[nth], dp[nth], ends[r].delta),
                                      ds_of<User>(s[nth + 1], dp[nth + 1], ends[r].delta));
      }
  }

  // ---- the main loop ----

  /// Once S has arrived: P = exp2(S - lse) of a tile, times the slope.
  __device__ void probabilities(const Walk& walk, int i) {
    this->draw(walk.tile(i));
    wgmma_wait<1>(s);
    this->remove(walk.tile(i), walk.is_full(i));
    this->weigh(walk.tile(i));
  }

  __device__ void prologue(const Walk& walk) {
    barrier_wait(shared.q_full(), 0);
    barrier_wait(shared.k_full(), 0);
    pin(dq);
    scores(0);  // S = Q K^T
    barrier_wait(shared.grad_o_full(), 0);
    barrier_wait(shared.v_full(), 0);
    flows(0);  // dP = dO V^T
    probabilities(walk, 0);
  }

  /// dS = P (dP - delta) of a tile; dQ += dS K; S and dP of the next one are issued, and its P computed.
  __device__ void iteration(const Walk& walk, int i, Ring<Tile::stages>& k, Ring<Tile::v_stages>& v) {
    wgmma_wait<0>(dp);
    v.release_as_warp(lane);
    each_part<Tile::parts>([&]<int Nth>() {
      constexpr int from = Nth * (n / 16) / Tile::parts, to = (Nth + 1) * (n / 16) / Tile::parts;
      join<from, to>(walk.tile(i));
      wgmma<from, to>(dq, ds, shared.k()[k.stage]);
    });
    const StageBarriers done = k.now();
    k.next();
    v.next();
    // After the last tile these products compute unused values: a branch around them would serialise all products.
    const bool more = i + 1 < walk.count;
    if (more) k.wait();
    scores(k.stage);
    // dS has to leave its registers before dP takes others; the next scores are under way.
    wgmma_wait<1>(dq);
    arrive_as_warp(done.empty(), lane);
    if (more) v.wait();
    flows(v.stage);
    probabilities(walk, more ? i + 1 : i);
  }

  __device__ void run(const Queries90<Tile>& queries) {
    this->enter(queries);
    const Walk walk = queries.walk(args, user);
    for (float& x : dq) x = 0;
    if (walk.count > 0) {
      Ring<Tile::stages> k(shared.k_full());
      Ring<Tile::v_stages> v(shared.v_full());
      prologue(walk);
#pragma unroll 1
      for (int i = 0; i < walk.count; ++i) iteration(walk, i, k, v);
      wgmma_wait<0>(dp);
    }
    this->store(queries, dq);
  }
};

/// The body of a kernel: a producer warpgroup, and two consumer warpgroups of type Group.
template <class Group, class Tile, class User>
__device__ inline void queries_block(const BackwardArgs& args, const User& user) {
  using Shared = SharedQueries90<Tile>;
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared shared{shared_address(memory)};
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / warpgroup_threads),
            warp = uniform(static_cast<int>(threadIdx.x) / 32 % 4);
  const Queries90<Tile> queries(args);
  if (group == 0) {
    registers_down<wide_block.loading>();
    if (warp == 0 && elected()) load_queries(args, user, shared, queries);
  } else {
    registers_up<wide_block.computing>();
    Group{{args, user, shared, group - 1, static_cast<int>(threadIdx.x) % 32, warp}}.run(queries);
  }
}

template <QueriesTile90 Tile, class User>
__global__ void __launch_bounds__(wide_block.threads, 1)
    queries_sm90(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  queries_block<QueriesWarpgroup90<Tile, User>, Tile>(args, user);
}

}  // namespace attune

// codegen/cuda/kernels/forward_sm90.cuh — the forward on Hopper: copy engine, specialised warp groups, products from
// registers
//
// One warp loads, one deals tiles of queries, two or three groups of four warps compute 64 queries each. A group issues
// the scores of its next tile of keys, then the products of the previous tile's probabilities with its values, and
// computes the softmax of the new scores while those products run. Groups take turns at issuing, so that the softmax of
// one overlaps the products of another. Blocks are persistent; the next queries load while a tile is finished.
//
// Tile: Element (bf16, f16); m = 64 x groups queries; n keys, a multiple of 16; d, dv: multiples of 16, at most 256;
// stages of keys and values; q_stages 1 or 2; own_o: results have shared memory of their own, else that of the queries;
// turns: how groups take turns, 0 not at all, 1 until both products are issued, 2 until the scores are there; dynamic:
// tiles are taken from a common counter; max: the rows' maximum is asked for; before: results of another call are
// merged in; heads: query heads that share a tile, 1, 2, 4 or 8, so that a thread's rows are of one head.
#pragma once

#include "codegen/cuda/parts/before.cuh"
#include "codegen/cuda/parts/deal_sm90.cuh"
#include "codegen/cuda/ptx/global.cuh"
#include "codegen/cuda/ptx/ldmatrix.cuh"
#include "codegen/cuda/ptx/wgmma.cuh"

namespace attune {

// ---- loading -----------------------------------------------------------------------------------------------------

template <class Tile, class User>
__device__ inline void load(const ForwardArgs& args, unsigned shared) {
  using Shared = Shared90<Tile>;
  Place<Tile::q_stages> q;
  Place<Tile::stages> k, v;
  Items<Tile, User> items{args, shared};
  for (;;) {
    const Item item = items.template take<false>();
    if (item.index == Item::stop) return;
    const Work& work = item.work;
    const Walk& walk = item.walk;
    if (walk.count == 0) {
      items.done();
      continue;
    }
    // Packed sequences follow one another along the positions of one batch entry.
    const int head = work.heads.first / args.group, q_batch = is_packed<Tile> ? 0 : work.b,
              batch = args.kv_shared ? 0 : q_batch;

    const auto load_k = [&](int row) {
      const unsigned full = shared + Shared::k_full + 16 * k.stage;
      barrier_wait(full + 8, k.phase ^ 1);
      barrier_expect(full, Shared::k_bytes);
      for (int c = 0; c < Shared::d_chunks; ++c)
        load_box(shared + Shared::k + k.stage * Shared::k_bytes + c * Tile::n * chunk_bytes, args.k_map, full,
                 c * Shared::chunk, item.keys.start + row, head, batch);
      k.next();
    };
    const auto load_v = [&](int row) {
      const unsigned full = shared + Shared::loaded_full + 16 * v.stage;
      barrier_wait(full + 8, v.phase ^ 1);
      barrier_expect(full, Shared::loaded_bytes);
      if constexpr (come_turned<Tile>) {
        // A tile is a box. Those of a packed sequence begin at its place.
        const int place = is_packed<Tile> ? item.keys.start / Tile::n + work.b : 0;
        load_box(shared + Shared::loaded + v.stage * Shared::loaded_bytes, args.v_map, full, 0,
                 (place + row / Tile::n) * Shared::turned_rows, head, batch);
      } else {
        for (int c = 0; c < Shared::dv_chunks; ++c)
          load_box(shared + Shared::loaded + v.stage * Shared::loaded_bytes + c * Tile::n * chunk_bytes, args.v_map,
                   full, c * Shared::chunk, item.keys.start + row, head, batch);
      }
      v.next();
    };

    const unsigned q_full = shared + Shared::q_full + 16 * q.stage;
    barrier_wait(q_full + 8, q.phase ^ 1);
    barrier_expect(q_full, Shared::q_bytes);
    for (int c = 0; c < Shared::d_chunks; ++c) {
      const unsigned into = shared + Shared::q + q.stage * Shared::q_bytes + c * Tile::m * chunk_bytes;
      const int position = item.queries.start + work.tile * queries_of<Tile>;
      if constexpr (Tile::heads == 1)
        load_box(into, args.q_map, q_full, c * Shared::chunk, position, work.heads.first, q_batch);
      else
        load_box_of_heads(into, args.q_map, q_full, c * Shared::chunk, work.heads.first % args.group, position, head,
                          q_batch);
    }
    q.next();
    // Lists are read one tile ahead of the loads.
    int here = walk.last * Tile::n, before = 0, next = walk.tile(1) * Tile::n;
#pragma unroll 1
    for (int i = 0; i <= walk.count; ++i) {
      if (i < walk.count) load_k(here);
      if (i > 0) load_v(before);
      before = here;
      here = next;
      next = walk.tile(i + 2) * Tile::n;
    }
    // The next tile is dealt only now: dealing sooner makes the ends of blocks less even.
    items.done();
  }
}

// ---- computing ---------------------------------------------------------------------------------------------------

/// A thread's registers while its group computes 64 queries. Thread t of the group holds row t / 4 % 8 + 16 (t / 32)
/// and the row 8 below; of these, columns 8 i + 2 (t % 4) and the next.
template <class Tile, class User>
struct Group90 {
  using Element = typename Tile::Element;
  using Out = typename Tile::Out;
  using Shared = Shared90<Tile>;
  static constexpr int n = Tile::n, bytes = ElementOf<Element>::bytes;
  static constexpr int below = 8 / Tile::heads;  ///< queries from a thread's first row to its second
  static_assert(8 % Tile::heads == 0);
  static constexpr bool fixed = fixed_maximum<Tile, User>;
  /// Full tiles reuse the maximum that earlier tiles found; they never compute one. With bands, partial tiles come
  /// first and find a maximum for nearly every row; partial tiles of lists may leave many rows without.
  static constexpr bool lean = does_again<Tile, User> && !User::traits.listed;
  /// Where a tile's rows belong to several heads, it may be inside for some of them only.
  static constexpr bool knows_inside = HasInside<User> && Tile::heads == 1;
  template <bool Partial>
  static constexpr bool shares = Shareable<typename User::Col> && (Partial || in_scores<typename User::Col>);

  const ForwardArgs& args;
  const User& user;
  unsigned shared;
  int group, lane, warp;
  float s[n / 2], o[Tile::dv / 2];
  unsigned p[n / 8 * bytes];
  float m[2], l[2], lift[2];
  Where at;
  int q_start, kv_start;  ///< the sequence's, within packed tensors
  typename User::Head head;
  typename User::Row row[2];
  typename User::Col cols[(n + 31) / 32];  ///< where lanes share them: of columns 8 i + e with 2 i + e = 8 j + lane / 4
  int q0, origin;
  float factor;
  bool moved = true;

  __device__ const auto& inside() const {
    if constexpr (knows_inside)
      return reinterpret_cast<const typename User::Inside&>(user);
    else
      return user;
  }
  /// Can a full tile's reads go unclamped?
  __device__ bool is_inside(int tile) const {
    if constexpr (knows_inside)
      return user.is_inside(head, at, origin, origin + Tile::m, tile * n, tile * n + n);
    else
      return true;
  }

  /// The query and the head of the warp's nth row, counted from the tile's first.
  __device__ int query(int nth) const { return (64 * group + 16 * warp + nth) / Tile::heads; }
  __device__ static int head_of(int nth) { return nth % Tile::heads; }

  /// Starts a tile of queries.
  __device__ void enter(const Item& item) {
    const Heads heads = item.work.heads;
    at = {item.work.b, heads.first, item.queries.length, item.keys.length};
    // Rows of heads that do not exist repeat the last head.
    if constexpr (Tile::heads > 1) at.h += min(head_of(lane / 4), heads.count - 1);
    q_start = item.queries.start;
    kv_start = item.keys.start;
    head = user.head(at);
    origin = args.q_offset + item.work.tile * queries_of<Tile>;
    q0 = origin + query(lane / 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) row[r] = user.row(head, at, q0 + below * r);
    factor = factor_of(user, head);
    // Rows past the end start with maximum 0, so that they never count as rows without a maximum.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      m[r] = q0 + below * r < args.q_offset + at.q_len ? -infinity : 0.0f;
      l[r] = 0;
    }
  }

  /// Issues the products of the queries with the keys in this stage.
  __device__ void scores(int q_stage, int stage) {
    const unsigned long long a = descriptor(shared + Shared::q + q_stage * Shared::q_bytes + group * 64 * chunk_bytes);
    const unsigned long long b = descriptor(shared + Shared::k + stage * Shared::k_bytes);
    constexpr int a_chunk = Tile::m * chunk_bytes >> 4, b_chunk = n * chunk_bytes >> 4,
                  chunks = Tile::d / Shared::chunk, step = 32 / bytes;  // columns of a product
#pragma unroll
    for (int c = 0; c < chunks; ++c)
      Product<n, Element>::template ss4<Major::k, Major::k>(s, a + c * a_chunk, b + c * b_chunk, c > 0);
#pragma unroll
    for (int i = 0; i < Tile::d % Shared::chunk / step; ++i)
      Product<n, Element>::template ss<Major::k, Major::k>(s, a + chunks * a_chunk + i * 2,
                                                           b + chunks * b_chunk + i * 2, chunks + i > 0);
    wgmma_commit();
  }
  __device__ void values(int stage, int add) {
    const unsigned long long b = descriptor(shared + Shared::v + stage * Shared::v_bytes, n * chunk_bytes);
    wgmma_fence();
    constexpr int step = 16 * chunk_bytes >> 4, steps = n / 16, of_fours = steps / 4 * 4;
#pragma unroll
    for (int i = 0; i < of_fours; i += 4)
      Product<Tile::dv, Element>::template rs4<Major::n>(o, p + 4 * i, b + i * step, add | (i > 0));
#pragma unroll
    for (int i = of_fours; i < steps; ++i)
      Product<Tile::dv, Element>::template rs<Major::n>(o, p + 4 * i, b + i * step, add | (i > 0));
    wgmma_commit();
  }

  /// f(i, r, e) for every score s[4 i + 2 r + e] of this thread, in row r and column 8 i + e. Sums by row and e are
  /// four chains that do not wait for each other.
  template <class F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int i = 0; i < n / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e)
#pragma unroll
        for (int r = 0; r < 2; ++r) f(i, r, e);
  }
  /// Reads the fields of columns that lanes share, early because reads take long.
  template <bool Partial>
  __device__ void read_columns(int tile) {
    if constexpr (shares<Partial>)
#pragma unroll
      for (int j = 0; j < (n + 31) / 32; ++j) {
        const int nth = 8 * j + lane / 4;
        cols[j] = user.col(head, at, origin, tile * n + 2 * (lane & 3) + 8 * (nth / 2) + nth % 2);
      }
  }
  template <bool Partial>
  __device__ typename User::Col column(const Int& kv, int i, int e) const {
    if constexpr (shares<Partial>)
      return cols[(2 * i + e) / 8].of_lane((2 * i + e) % 8 * 4 + (lane & 3));
    else
      return user.col(head, at, origin, kv);
  }

  /// f(x, mod, row, col, q, kv) for every score x; in full tiles `mod` does not clamp its reads.
  template <bool Partial, class F>
  __device__ void each_pair(int tile, const F& f) {
    const int kv0 = tile * n + 2 * (lane & 3);
    each([&](int i, int r, int e) {
      const Int q(q0, below * r), kv(kv0, 8 * i + e);
      const auto col = column<Partial>(kv, i, e);
      if constexpr (Partial)
        f(s[4 * i + 2 * r + e], user, row[r], col, q, kv);
      else
        f(s[4 * i + 2 * r + e], inside(), row[r], col, q, kv);
    });
  }

  /// Scores become exponents of powers of two, or, if User::traits.scaled, stay a factor below them.
  template <bool Partial>
  __device__ void exponents(int tile) {
    if constexpr (!User::traits.scaled)
      each_pair<Partial>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        x = mod.exponent(x, head, row, col, at, origin, q, kv);
      });
  }

  /// Removed pairs become -inf.
  __device__ void remove(int tile) {
    const int kv0 = tile * n + 2 * (lane & 3);
    const Reach<User> reach[2] = {{user, head, row[0], at, Int(q0), kv0},
                                  {user, head, row[1], at, Int(q0, below), kv0}};
    constexpr int last = n - 7;  // of a thread's columns
    if (__any_sync(~0u, !(reach[0].holds(0) && reach[0].holds(last) && reach[1].holds(0) && reach[1].holds(last))))
      each([&](int i, int r, int e) {
        float& x = s[4 * i + 2 * r + e];
        x = reach[r].holds(8 * i + e) ? x : -infinity;
      });
    if constexpr (User::traits.has_keep) {
      if constexpr (shares<true> && User::traits.keeps_by_fields)
        if (rows_alike()) return remove_columns();
      each_pair<true>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        x = mod.keep(head, row, col, at, q, kv) ? x : -infinity;
      });
    }
  }
  __device__ bool rows_alike() const {
    if constexpr (!Shareable<typename User::Row>)
      return true;  // they have no fields
    else {
      const auto first = row[0].of_lane(0);
      return __all_sync(~0u, row[0].is(first) && row[1].is(first));
    }
  }
  /// Where a warp's rows are alike, the lane that has a column calls keep() for it, once.
  __device__ void remove_columns() {
    constexpr int words = (n + 31) / 32;
    unsigned kept[words], all = ~0u;
#pragma unroll
    for (int j = 0; j < words; ++j) {
      kept[j] = __ballot_sync(~0u, user.keep(head, row[0], cols[j], at, Int(0), Int(0)));
      all &= kept[j];
    }
    if (all == ~0u) return;
#pragma unroll
    for (int j = 0; j < words; ++j) kept[j] >>= lane & 3;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = kept[(2 * i + e) / 8] & (1u << (2 * i + e) % 8 * 4) ? x : -infinity;
    });
  }

  /// Are all rows' maxima known, so that powers can be taken below them?
  __device__ bool ready(bool careful) const {
    return does_again<Tile, User> && !careful && !__any_sync(~0u, m[0] == -infinity || m[1] == -infinity);
  }

  /// Exponents become probabilities, not divided by their sum yet, and the rows' maxima are brought up to date.
  __device__ void softmax(bool first) {
    float top[2][2] = {{s[0], s[1]}, {s[2], s[3]}};
    each([&](int i, int r, int e) { top[r][e] = fmaxf(top[r][e], s[4 * i + 2 * r + e]); });
    float most[2] = {fmaxf(top[0][0], top[0][1]), fmaxf(top[1][0], top[1][1])};
    float parts[2][2] = {}, base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = fmaxf(below_maximum(scaled(row_max(most[r]))), m[r]);
      base[r] = most[r] == -infinity ? 0.0f : most[r];
      if (!first) lift[r] = power_of_two(m[r] - base[r]);
      m[r] = most[r];
    }
    moved = true;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = power_of_two(scaled(x) - base[r]);
      parts[r][e] += x;
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = parts[r][0] + parts[r][1];
      l[r] = first ? sum : l[r] * lift[r] + sum;
    }
  }
  /// What powers are taken relative to, of a row with this maximum.
  __device__ static float below_maximum(float top) {
    if constexpr (most_exponent<Element> == 0) {
      return top;
    } else {
      // Where a number is so large that it has no such neighbour, powers are taken relative to itself.
      const float below = top - most_exponent<Element>;
      return top - below > most_exponent<Element> ? top : below;
    }
  }
  __device__ float scaled(float x) const { return User::traits.scaled ? x * factor : x; }

  /// Powers relative to a maximum that is known already, so that no score waits for another. A maximum that turns out
  /// to be too low is raised afterwards; where a power overflows, l is not finite in the end, and the tile is done
  /// again.
  __device__ void powers() {
    constexpr float too_large = attune::too_large<Element>;
    float parts[2][2] = {}, sum[2];
    lift[0] = lift[1] = 1;
    moved = false;
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = power_of_two(scaled(x) - (fixed ? User::traits.most : m[r]));
      parts[r][e] += x;
    });
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = parts[r][0] + parts[r][1];
    if constexpr (!fixed) {
      moved = __any_sync(~0u, !(fmaxf(sum[0], sum[1]) < too_large));
      if (moved) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const float total = row_max(sum[r]);
          if (!(total < too_large)) {
            float by = log2f(total);
            // A whole number: what was exact in 8 bits stays so.
            if constexpr (most_exponent<Element> != 0) by = ceilf(by - most_exponent<Element>);
            lift[r] = power_of_two(-by);
            m[r] += by;
          }
        }
        each([&](int i, int r, int e) { s[4 * i + 2 * r + e] *= lift[r]; });
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) l[r] = (l[r] + sum[r]) * lift[r];
  }

  __device__ void rescale() {
    if (!moved) return;
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) o[i] *= lift[i / 2 % 2];
  }

  /// A prob mod acts on probabilities.
  template <bool Partial>
  __device__ void prob(int tile) {
    if constexpr (User::traits.has_prob)
      each_pair<Partial>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
        x = mod.prob(x, head, row, col, at, q, kv);
      });
  }
  /// Scores of a tile become probabilities. Partial: some of its pairs may be removed.
  template <bool Partial>
  __device__ void weigh(int tile, bool first, bool careful) {
    exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    if (fixed || (!first && ready(careful)))
      powers();
    else if constexpr (Partial || !lean)
      softmax(first);
    else
      moved = false, l[0] = infinity;  // a row has had no pair before: done again
    prob<Partial>(tile);
  }
  /// Keeps the compiler from moving accesses to what products with values are summed up in.
  __device__ void pin_products() { pin(o); }
  /// Results take in those sums.
  __device__ void take_in() {}
  /// The probabilities become an operand.
  __device__ void operand() {
#pragma unroll
    for (int i = 0; i < n / 4; ++i) p[i] = pack<Element>(s[2 * i], s[2 * i + 1]);
  }

  /// The factor of a row's results, and of those of other keys.
  struct Factors {
    float own, before;
  };
  /// Ends a row, and writes lse and max. All lanes of a warp call it. `sum` is relative to `top`, which is this far
  /// below the row's maximum.
  __device__ Factors ended(const Where& at, const typename User::Head& head, int q, float sum, float top, float below,
                           bool write) const {
    const Int q_at = args.q_offset + q;
    Ended row = end_of_row<User>(user, head, user.row(head, at, q_at), at, origin, q_at, {sum, top});
    Factors out{row.factor, 0};
    if constexpr (has_before<Tile>) {
      const Merged with = merged(row.lse, q < at.q_len ? lse_before(args, at.b, at.h, q_start + q) : -infinity);
      out = {row.factor * with.own, with.before};
      row.lse = with.lse;
      __syncwarp();  // the row's other threads have read it: it may be overwritten
    }
    if (write && q < at.q_len) {
      const auto put = [&](const Rows& rows, float x) {
        if (rows.data) rows.data[at.b * rows.batch + at.h * rows.head + (q_start + q) * rows.position] = x;
      };
      put(args.lse, row.lse);
      if constexpr (Tile::max) put(args.max, most_exponent<Element> == 0 ? row.max : row.max + below * ln2);
    }
    return out;
  }

  /// o = o / l; lse and max.
  __device__ void finish(const Work& work, bool empty, bool mine) {
    // The four threads of two rows end one row each: the even lanes the first, the odd lanes the second.
    const int r = lane & 1, q = work.tile * queries_of<Tile> + query(lane / 4 + 8 * r);
    if (Tile::heads > 1 && head_of(lane / 4) >= work.heads.count) mine = false;
    const float sums[2] = {row_sum(l[0]), row_sum(l[1])}, sum = r ? sums[1] : sums[0], top = r ? m[1] : m[0];
    const Factors factors = ended(at, head, q, empty ? 0.0f : sum, fixed ? User::traits.most : top,
                                  most_exponent<Element>, mine && lane % 4 < 2);
    const auto of_both = [&](float x, float(&rows)[2]) {
      rows[0] = __shfl_sync(~0u, x, lane & ~1);
      rows[1] = __shfl_sync(~0u, x, lane | 1);
    };
    float by[2];
    of_both(factors.own, by);
    // The sums of a row without pairs may hold anything.
    if (__any_sync(~0u, by[0] == 0.0f || by[1] == 0.0f)) {
#pragma unroll
      for (int i = 0; i < Tile::dv / 2; ++i) o[i] = by[i / 2 % 2] == 0.0f ? 0.0f : o[i];
      pin(o);
    }
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) o[i] *= by[i / 2 % 2];
    if constexpr (has_before<Tile>) {
      float before[2];
      of_both(factors.before, before);
      if (mine) add_before(work, before);
    }
  }

  /// Adds what other keys gave. What counts for nothing may be anything.
  __device__ void add_before(const Work& work, const float (&by)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = q_start + work.tile * queries_of<Tile> + query(lane / 4 + 8 * r);
      if (by[r] == 0.0f) continue;
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int column = 8 * i + 2 * (lane & 3) + e; column < args.dv)
            o[4 * i + 2 * r + e] += by[r] * o_before(args, at.b, at.h, position, column);
    }
  }

  /// Is any result not finite? Then some value is not, and a removed pair may have brought it in: 0 times NaN.
  __device__ bool has_odd() const {
    float zero[4] = {};
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) zero[i % 4] += o[i] * 0.0f;
    return !(zero[0] + zero[1] + (zero[2] + zero[3]) == 0.0f);
  }

  /// The same answer for the warp's nth row in every thread.
  __device__ Where of_row(const Work& work, int nth) const {
    Where out = at;
    if constexpr (Tile::heads > 1) out.h = work.heads.first + head_of(nth);
    return out;
  }
  __device__ typename User::Head head_at(const Where& at) const { return Tile::heads == 1 ? head : user.head(at); }
  __device__ float factor_at(const typename User::Head& head) const {
    return Tile::heads == 1 ? factor : factor_of(user, head);
  }

  /// Computes rows pair by pair, some fifty times slower, where values are not finite and pairs are removed: a removed
  /// value must not reach a result, and a product of matrices leaves nothing out. A warp takes one row after another.
  __device__ void by_pairs(const Work& work, const Walk& walk) {
    constexpr int lanes = 32;
    const auto line = [](const Strided& t, int b, int h, int i) {
      return static_cast<const Element*>(t.data) + b * t.batch + h * t.head + i * t.position;
    };
    const int kv_head = work.heads.first / args.group, kv_batch = args.kv_shared ? 0 : work.b;
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int q = uniform(work.tile * queries_of<Tile> + query(r));
      if (q >= at.q_len) return;
      if (head_of(r) >= work.heads.count) continue;
      // This row may belong to another head than the thread's own rows.
      const Where at = of_row(work, r);
      const auto head = head_at(at);
      const float factor = factor_at(head);
      const Int q_at = args.q_offset + q;
      const auto my_row = user.row(head, at, q_at);
      const Reach<User> reach(user, head, my_row, at, q_at, 0);
      float mine[(Tile::d + lanes - 1) / lanes], out[(Tile::dv + lanes - 1) / lanes] = {};
      const auto each_of = [&](auto& list, int count, const auto& f) {
#pragma unroll
        for (int j = 0; j < static_cast<int>(sizeof(list) / sizeof(float)); ++j)
          if (lane + lanes * j < count) f(list[j], lane + lanes * j);
      };
      const Element* q_line = line(args.q, at.b, at.h, q_start + q);
      each_of(mine, args.d, [&](float& x, int j) { x = f32(q_line[j]); });
      float top = -infinity, sum = 0;
#pragma unroll 1
      for (int i = 0; i < walk.count * n; ++i) {
        const int kv = walk.tile(i / n) * n + n - 1 - i % n;
        const Int kv_at = kv;
        if (kv >= at.kv_len) continue;
        const auto col = user.col(head, at, origin, kv_at);
        // All lanes agree; the vote tells the compiler so.
        if (!__any_sync(~0u, reach.holds(kv) && user.keep(head, my_row, col, at, q_at, kv_at))) continue;
        const Element* k_line = line(args.k, kv_batch, kv_head, kv_start + kv);
        float x = 0;
        each_of(mine, args.d, [&](float y, int j) { x += y * f32(k_line[j]); });
#pragma unroll
        for (int step = 1; step < lanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
        x = User::traits.scaled ? x * factor : user.exponent(x, head, my_row, col, at, origin, q_at, kv_at);
        if (__any_sync(~0u, x == -infinity)) continue;
        const float most = fmaxf(top, x), old = top == -infinity ? 0.0f : power_of_two(top - most);
        float p = power_of_two(x - most);
        sum = sum * old + p;
        top = most;
        if constexpr (User::traits.has_prob) p = user.prob(p, head, my_row, col, at, q_at, kv_at);
        const Element* v_line = line(args.v, kv_batch, kv_head, kv_start + kv);
        each_of(out, args.dv, [&](float& y, int j) { y = (old == 0.0f ? 0.0f : y * old) + p * f32(v_line[j]); });
      }
      const Factors by = ended(at, head, q, sum, top, 0, lane == 0);
      Out* o_line = result(at.h, q);
      each_of(out, args.dv, [&](float y, int j) {
        float x = by.own == 0.0f ? 0.0f : y * by.own;
        if constexpr (has_before<Tile>)
          if (by.before != 0.0f) x += by.before * o_before(args, at.b, at.h, q_start + q, j);
        o_line[j] = {static_cast<unsigned short>(pack<Out>(x, 0.0f))};
      });
    }
  }

  __device__ Out* result(int h, int q) const {
    return static_cast<Out*>(args.o.data) + at.b * args.o.batch + h * args.o.head + (q_start + q) * args.o.position;
  }

  /// Stores the results of a warp's 16 rows through shared memory, in swizzled rows of 128 bytes.
  __device__ void store(const Work& work) {
    const int rows = 64 * group + 16 * warp;
    const unsigned into = shared + Shared::o + rows * chunk_bytes;
    const int line = lane & 15;
#pragma unroll
    for (int i = 0; i < Tile::dv / 16; ++i) {
      const unsigned address = into + i / 4 * (Tile::m * chunk_bytes) + line * chunk_bytes +
                               (((2 * (i % 4) + (lane >> 4)) ^ (line & 7)) << 4);
      store_blocks(address, pack<Out>(o[8 * i], o[8 * i + 1]), pack<Out>(o[8 * i + 2], o[8 * i + 3]),
                   pack<Out>(o[8 * i + 4], o[8 * i + 5]), pack<Out>(o[8 * i + 6], o[8 * i + 7]));
    }
    const int q = work.tile * queries_of<Tile> + query(0);
    proxy_fence();
    __syncwarp();
    if (is_packed<Tile> && q + 16 / Tile::heads > at.q_len) {
      store_some(work, into, q);
    } else if (lane == 0) {
      const int first = work.heads.first, batch = is_packed<Tile> ? 0 : work.b;
      for (int c = 0; c < Shared::o_chunks; ++c) {
        const unsigned from = into + c * Tile::m * chunk_bytes;
        if constexpr (Tile::heads == 1)
          store_box(args.o_map, from, c * Shared::o_chunk, q_start + q, first, batch);
        else
          store_box_of_heads(args.o_map, from, c * Shared::o_chunk, first % args.group, q_start + q, first / args.group,
                             batch);
      }
      store_commit();
    }
  }
  /// Stores element by element where a packed sequence ends within the warp's rows: the copy engine would overwrite
  /// rows of the next sequence.
  __device__ void store_some(const Work& work, unsigned from, int q) const {
    constexpr int unit = 8;  // elements in 16 bytes, which stay together
    const int units = (args.dv + unit - 1) / unit;
#pragma unroll 1
    for (int i = lane; i < (at.q_len - q) * Tile::heads * units; i += 32) {
      const int line = i / units, nth = i % units;
      if (head_of(line) >= work.heads.count) continue;
      const unsigned address = from + nth / 8 * (Tile::m * chunk_bytes) + line * chunk_bytes +
                               ((nth % 8 ^ (line & 7)) << 4);
      Out* to = result(work.heads.first + head_of(line), q + line / Tile::heads) + nth * unit;
#pragma unroll 1
      for (int e = 0; e < min(args.dv - nth * unit, unit); ++e) global_put(to + e, shared_get_half(address + 2 * e));
    }
  }
};

template <class Group, class Tile, class User>
__device__ inline void compute(const ForwardArgs& args, const User& user, unsigned shared, int group) {
  using Shared = Shared90<Tile>;
  constexpr int groups = Tile::m / 64;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Group g{args, user, shared, group, thread % 32, thread / 32};
  Place<Tile::q_stages> q;
  Place<Tile::stages> k;  // values are a tile behind keys
  // Groups issue in turns: each waits at its own barrier, at which the group before it arrives.
  const auto my_turn = [&] { named_sync(1 + group, 256); };
  const auto your_turn = [&] { named_arrive(1 + (group + 1) % groups, 256); };
  constexpr bool issue_in_turns = Tile::turns == 1, products_in_turns = Tile::turns == 2;
  const auto release = [&](int barrier) {
    if (g.lane == 0) barrier_arrive(shared + barrier + 8);
  };
  if (Tile::turns && group == groups - 1) your_turn();
  const Again<Tile> to_do_again{shared};
  const int me = uniform(4 * group + g.warp);
  Items<Tile, User> items{args, shared};
  int found = 0;  // tiles to do again
  // Products are issued whether or not there are keys, so that the compiler sees one flow of them.
  const auto begin = [&](const Item& item) {
    if (item.walk.count > 0) {
      barrier_wait(shared + Shared::q_full + 16 * q.stage, q.phase);
      barrier_wait(shared + Shared::k_full + 16 * k.stage, k.phase);
    }
    if constexpr (issue_in_turns) my_turn();
    pin(g.s);
    wgmma_fence();
    g.scores(q.stage, k.stage);
    if constexpr (issue_in_turns) your_turn();
  };
  const auto next_item = [&] {
    const Item item = items.template take<true>();
    __syncwarp();
    if (g.lane == 0) items.done();
    return item;
  };
  Item item = next_item();
  // The compiler would move undefined registers about while products are under way.
  for (float& x : g.o) x = 0;
  for (unsigned& x : g.p) x = 0;
  g.pin_products();
  begin(item);
  for (;;) {
    // Keys behind the end of a packed sequence belong to the next one.
    constexpr bool removes = User::traits.masked || is_packed<Tile>;
    const Item now = item;
    const Work& work = now.work;
    const Walk& walk = now.walk;
    const bool careful = now.owners != Item::all;
    bool mine = now.owners >> me & 1, by_pairs = false;
    g.enter(now);
    if (walk.count > 0) g.template read_columns<true>(walk.last);
    wgmma_wait<0>();
    pin(g.s);
    if (walk.count > 0) {
      release(Shared::k_full + 16 * k.stage);
      k.next();
      g.template weigh<true>(walk.last, true, careful);
      g.operand();

      int next = walk.tile(1);
      const auto step = [&]<bool Partial>(int i) {
        const int tile = next;
        const Place<Tile::stages> v = k.before();
        barrier_wait(shared + Shared::k_full + 16 * k.stage, k.phase);
        if constexpr (issue_in_turns || products_in_turns) my_turn();
        pin(g.s);
        g.pin_products();
        wgmma_fence();
        g.scores(q.stage, k.stage);
        barrier_wait(shared + Shared::v_full + 16 * v.stage, v.phase);
        g.values(v.stage, i > 1);
        if constexpr (issue_in_turns) your_turn();
        g.template read_columns<Partial>(tile);
        next = walk.tile(i + 1);
        wgmma_wait<1>();
        if constexpr (products_in_turns) your_turn();
        pin(g.s);
        release(Shared::k_full + 16 * k.stage);
        k.next();
        g.template weigh<Partial>(tile, false, careful);
        wgmma_wait<0>();
        g.pin_products();
        release(Shared::v_full + 16 * v.stage);
        g.take_in();
        g.operand();
        g.rescale();
      };
      // Warps of a group must agree on which products they issue, so nothing of a warp's own decides a step.
      int i = 1;
#pragma unroll 1
      while (i < walk.count) {
#pragma unroll 1
        for (; !(g.lean && careful) && walk.is_full(i) && g.is_inside(next); ++i) step.template operator()<false>(i);
        if (i == walk.count) break;
        step.template operator()<true>(i++);
      }
      if constexpr (Tile::own_o) {
        release(Shared::q_full + 16 * q.stage);
        q.next();
      }
      barrier_wait(shared + Shared::v_full + 16 * k.before().stage, k.before().phase);
    }
    const Place<Tile::stages> v = k.before();
    g.pin_products();
    wgmma_fence();
    g.values(v.stage, walk.count > 1);
    const bool there = now.index >= 0;
    if (!there) {
      if (g.lane == 0) to_do_again.put(me, 0, found);
      __syncwarp();
      if (g.lane == 0) barrier_arrive(shared + Shared::known);
      found = 0;
    }
    wgmma_wait<0>();
    g.pin_products();
    g.take_in();
    if (there) {
      if (walk.count > 0) release(Shared::v_full + 16 * v.stage);
      if constexpr (does_again<Tile, User> || removes) {
        // An infinite or NaN sum of powers: the maximum was too low, or the scores themselves are so.
        const bool low = does_again<Tile, User> && !careful && !(g.l[0] < 3e38f && g.l[1] < 3e38f);
        const bool odd = removes && walk.count > walk.full && g.has_odd();
        if (__any_sync(~0u, low || odd)) {
          if (does_again<Tile, User> && __any_sync(~0u, low)) {
            mine = false;
            ++found;
            if (g.lane == 0) to_do_again.put(me, found, now.index);
            if (g.lane == 0 && found == Shared::again_most - 1) to_do_again.say_crowded(true);
          } else {
            by_pairs = true;
          }
        }
      }
      if (by_pairs) {
        if constexpr (removes)
          if (mine) g.by_pairs(work, walk);
        mine = false;
      } else {
        g.finish(work, walk.count == 0, mine);
      }
      // Memory for results is free once the previous ones were read, or once the whole group is done with q.
      if constexpr (Tile::own_o) {
        if (g.lane == 0) store_wait_read();
        __syncwarp();
      } else {
        named_sync(8 + group, 128);
      }
      if (mine) g.store(work);
      if constexpr (!Tile::own_o) {
        if (g.lane == 0) store_wait_read();
        __syncwarp();
        if (walk.count > 0) {
          release(Shared::q_full + 16 * q.stage);
          q.next();
        }
      }
    }
    item = next_item();
    begin(item);
    if (item.index == Item::stop) break;
  }
  wgmma_wait<0>();
  pin(g.s);
  if (g.lane == 0) store_wait();
}

/// Warps that turn values round.
template <class Tile>
constexpr int turners = turns_values<Tile> ? 2 : 0;

/// What all threads of a block do. Group: what they compute with.
template <class Group, class Tile, class User>
__device__ inline void forward_block(const ArgsOf<Tile, ForwardArgs>& args, const User& user) {
  using Shared = Shared90<Tile>;
  constexpr int groups = Tile::m / 64, loads = Tile::q_stages + Tile::stages;
  extern __shared__ unsigned char memory[];
  const unsigned shared = (shared_address(memory) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int i = 0; i < loads + Tile::stages; ++i) {
      barrier_init(shared + Shared::q_full + 16 * i, turns_values<Tile> && i >= loads ? turners<Tile> : 1);
      barrier_init(shared + Shared::q_full + 16 * i + 8, 4 * groups);
    }
    if constexpr (turns_values<Tile>)
      for (int i = 0; i < Tile::stages; ++i) {
        barrier_init(shared + Shared::loaded_full + 16 * i, 1);
        barrier_init(shared + Shared::loaded_full + 16 * i + 8, turners<Tile>);
      }
    barrier_init(shared + Shared::known, 4 * groups);
    shared_put(shared + Shared::crowded, 0);
    barrier_init(shared + Shared::item_full, 1);
    barrier_init(shared + Shared::item_full + 8, 4 * groups + 1 + turners<Tile>);
    barrier_init_done();
  }
  __syncthreads();
  // This kernel may start before the lists are written, or values turned round.
  if constexpr (User::traits.listed || come_turned<Tile>) wait_for_kernel_before();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    registers_down<groups == 2 ? 40 : 32>();
    if (threadIdx.x == 0) load<Tile, User>(args, shared);
    if (threadIdx.x == 32) deal<Tile>(args, user, shared);
    if constexpr (turns_values<Tile>)
      if (threadIdx.x >= 64) Group::turn_values(args, shared);
  } else {
    registers_up<groups == 2 ? 232 : 160>();
    compute<Group, Tile>(args, user, shared, group - 1);
  }
}

template <class Tile, class User>
__global__ void __launch_bounds__(128 * (Tile::m / 64 + 1), 1)
    forward_sm90(const __grid_constant__ ArgsOf<Tile, ForwardArgs> args, const __grid_constant__ User user) {
  forward_block<Group90<Tile, User>, Tile>(args, user);
}

}  // namespace attune

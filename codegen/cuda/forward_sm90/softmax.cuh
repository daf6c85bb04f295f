// codegen/cuda/forward_sm90/softmax.cuh — the softmax of a consumer warpgroup of Hopper's forward, and the end of a
// tile of queries: o = o / l, lse and max, results to memory; rows that are computed pair by pair
#pragma once

#include "codegen/cuda/forward_sm90/producer.cuh"
#include "codegen/cuda/forward_sm90/scores.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

template <class Tile, class User>
struct ForwardSoftmax90 : ForwardScores90<Tile, User> {
  using Scores = ForwardScores90<Tile, User>;
  using Scores::ahead, Scores::args, Scores::at, Scores::below, Scores::entry, Scores::factor, Scores::fixed,
      Scores::group, Scores::head, Scores::l, Scores::lane, Scores::lean, Scores::leads, Scores::led, Scores::lift,
      Scores::m, Scores::moved, Scores::n, Scores::o, Scores::origin, Scores::part, Scores::peak, Scores::q0, Scores::s,
      Scores::shared, Scores::user, Scores::warp;
  using Scores::each, Scores::head_of, Scores::query, Scores::remove;
  using typename Scores::Element, typename Scores::Out, typename Scores::Shared;

  /// True if all rows' maxima are known, so that powers can be relative to them.
  __device__ bool ready(bool recomputing) const {
    return recomputes<Tile, User> && !recomputing && !__any_sync(~0u, m[0] == -infinity || m[1] == -infinity);
  }

  /// P = exp2(S - max), not yet divided by the sum; updates the rows' maxima.
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
      if constexpr (leads) peak[r] = fmaxf(peak[r], ahead[r]);
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
  /// The exponent that powers of a row with this maximum are relative to.
  __device__ static float below_maximum(float top) {
    if constexpr (most_exponent<Element> == 0) {
      return top;
    } else {
      // If `top` is so large that the subtraction rounds to more, powers are relative to `top` itself.
      const float below = top - most_exponent<Element>;
      return top - below > most_exponent<Element> ? top : below;
    }
  }
  __device__ float scaled(float x) const { return User::traits.scaled ? x * factor : x; }

  /// Raises the maxima before powers() of a tile whose term() may be larger than before, so that no power overflows.
  /// `by`: the factors for what is relative to the old maxima.
  __device__ void raise(float (&by)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float up = ahead[r] - peak[r];
      if (m[r] == -infinity || up >= 128) {  // nothing before is left: as if the largest s were 0
        m[r] = ahead[r];
        by[r] = 0;
      } else {
        m[r] += fmaxf(up, 0.0f);
        by[r] = power_of_two(-fmaxf(up, 0.0f));
      }
      peak[r] = fmaxf(peak[r], ahead[r]);
      l[r] *= by[r];
    }
  }
  /// True if a row's maximum was raised so high that its powers have lost digits.
  __device__ bool is_high() const {
    bool out = false;
    if constexpr (leads) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const bool there = q0 + below * r < this->q_end() && m[r] != -infinity;
        out |= row_sum(l[r]) < too_small<Element, (User::traits.degree > 1)> && there;
      }
    }
    return out;
  }

  /// each() in another order, four scores of a row one after another, so that the assembler reuses a maximum whichever
  /// registers it chose. Kernels that are compiled as a whole were up to 1 % slower with it.
  template <class F>
  __device__ void each_power(const F& f) {
    if constexpr (!is_skeleton<User>) {
      each(f);
    } else {
#pragma unroll
      for (int i = 0; i < Tile::n / 8; i += 2)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            if (i + j / 2 < Tile::n / 8) f(i + j / 2, r, j % 2);
    }
  }
  /// Powers relative to a maximum that is already known, so no score waits for another. A maximum that turns out to be
  /// too low is raised afterwards; if a power overflows, l ends up non-finite, and the tile is recomputed.
  __device__ void powers() {
    powers([&](int i, int r, int e) { return scaled(s[4 * i + 2 * r + e]); });
  }
  /// `exponent` gives that of a score, by its place.
  template <class F>
  __device__ void powers(const F& exponent) {
    constexpr float too_large = attune::too_large<Element>;
    float parts[2][2] = {}, sum[2];
    lift[0] = lift[1] = 1;
    moved = false;
    each_power([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = power_of_two(exponent(i, r, e) - (fixed ? most_of(user) : base_of(m[r])));
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
            // Results below 2^-126 are 0, and the row would lose this tile. Where powers are infinite, they stay so.
            float by = fminf(log2f(total), 126.0f);
            // A whole number, so that results that were exact in 8 bits stay exact.
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
  /// What powers are relative to. With leads, a row without a maximum has no finite score.
  __device__ static float base_of(float m) { return leads && m == -infinity ? 0.0f : m; }

  __device__ void rescale() {
    if (!moved) return;
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) o[i] *= to_degree<User>(lift[i / 2 % 2]);
  }

  /// Applies the prob mod to P; dropout's factor is left to finish(), and drawn decisions to operand().
  template <bool Partial>
  __device__ void prob(int tile) {
    if constexpr (Scores::is_drawn)
      this->drawn.read(this->numbers, 64 * group + 16 * warp, lane);
    else if constexpr (User::traits.drops)
      each([&](int i, int r, int e) {
        float& x = s[4 * i + 2 * r + e];
        x = this->kept.holds(i, r, e) ? x : 0.0f;
      });
    else if constexpr (User::traits.has_prob)
      this->template each_pair<Partial>(tile, [&](float& x, const auto& mod, const auto& row, const auto& col, Int q,
                                                  Int kv) { x = mod.prob(x, head, row, col, at, q, kv); });
  }
  /// The first of two walks: adds the powers of a tile to its rows' sums.
  template <bool Partial>
  __device__ void add_up(int tile) {
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    if constexpr (fixed)
      powers();
    else
      softmax(false);
  }
  /// The second: P = prob(exp2(S - max) / sum). A pair that is masked out, in a full tile by a score of -inf, has 0,
  /// whatever prob(0) is.
  template <bool Partial>
  __device__ void probabilities(int tile) {
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    moved = false;
    const float under[2] = {fixed               ? most_of(user)
                            : m[0] == -infinity ? 0.0f
                                                : m[0],
                            fixed               ? most_of(user)
                            : m[1] == -infinity ? 0.0f
                                                : m[1]};
    constexpr float removed = -1;  // if prob(0) is 0, the power of -inf will do
    const auto counts = [](float x, float of) { return User::traits.keeps_zero || x != of; };
    each([&](int i, int r, int e) {
      float& x = s[4 * i + 2 * r + e];
      x = counts(x, -infinity) ? power_of_two(scaled(x) - under[r]) * this->per_power[r] : removed;
    });
    this->template each_pair<Partial>(tile,
                                      [&](float& x, const auto& mod, const auto& row, const auto& col, Int q, Int kv) {
                                        x = counts(x, removed) ? mod.prob(x, head, row, col, at, q, kv) : 0.0f;
                                      });
  }

  /// P of a tile. Partial: some of its pairs may be masked out.
  template <bool Partial>
  __device__ void weigh(int tile, bool first, bool recomputing) {
    if constexpr (two_walks<User>) return probabilities<Partial>(tile);
    if constexpr (fixed && Scores::has_tanh && !Partial) {
      // Together, so that the special-function unit computes powers while others compute polynomials.
      this->template by_tanh<false>(tile, [&](const auto& exponent) { powers(exponent); });
      return prob<false>(tile);
    }
    this->template exponents<Partial>(tile);
    if constexpr (Partial) remove(tile);
    constexpr bool guesses = leads && lean && !Partial;  // a maximum for rows without one
    const bool known = fixed || (!first && ready(recomputing));
    if (guesses || known) {
      const bool raises = leads && (led || !known);
      float by[2];
      if (raises) raise(by);
      powers();
      if (raises) {
#pragma unroll
        for (int r = 0; r < 2; ++r) lift[r] *= by[r];
        moved = true;
      }
    } else if constexpr (Partial || !lean) {
      softmax(first);
    } else {
      moved = false, l[0] = infinity;  // a row had no pair before: recomputed
    }
    prob<Partial>(tile);
  }

  // ---- the end of a tile of queries ----

  /// The factors of a row's results, and of its results over other keys.
  struct Factors {
    float own, before;
  };
  /// Ends a row, and writes lse and max. All lanes of a warp call it. `sum` is relative to `top`, which is `below` less
  /// than the row's maximum.
  __device__ Factors ended(const Where& at, const typename User::Head& head, int q, float sum, float top, float below,
                           bool write) const {
    const Int q_at = entry.query(q);
    Ended row = end_of_row<User>(user, head, user.row(head, at, q_at), at, origin, q_at, {sum, top});
    Factors out{row.factor, 0};
    if constexpr (two_walks<User>)
      if (row.max == -infinity) out.own = -0.0f;
    if constexpr (has_before<Tile>) {
      static_assert(User::traits.degree == 1);
      const Merged with = merged(row.lse,
                                 q < at.q_len ? lse_before(args, at.b, at.h, entry.queries.start + q) : -infinity);
      out = {row.factor * with.own, with.before};
      row.lse = with.lse;
      __syncwarp();  // the row's other threads have read lse_before, which may be overwritten now
    }
    if (write && q < at.q_len) {
      put_of_row(args.lse, at.b, at.h, entry.queries.start + q, row.lse);
      if constexpr (Tile::max)
        put_of_row(args.max, at.b, at.h, entry.queries.start + q,
                   most_exponent<Element> == 0 ? row.max : row.max + below * ln2);
    }
    return out;
  }

  /// The number of a row, as KeyParts counts them.
  __device__ long long number_of(int h, int q) const {
    const long long before = (is_packed<Tile> ? 0 : at.b) * args.q_heads + h;
    return before * key_parts(args).positions + entry.queries.start + q;
  }
  /// Where a row's results over this part of the keys are left.
  __device__ float* left(int h, int q) const {
    const KeyParts& parts = key_parts(args);
    return parts.o + (part * parts.rows + number_of(h, q)) * args.dv;
  }
  /// Leaves the sums of a row over a part of its keys. All lanes of a warp call it.
  __device__ void leave_row(const Where& at, const typename User::Head& head, int q, RowPartial sums,
                            bool write) const {
    const Int q_at = entry.query(q);
    const float rest = user.rest(head, user.row(head, at, q_at), at, origin, q_at);
    float sink = -infinity;
    if constexpr (User::traits.has_sink) sink = user.sink(head, at);
    if (!write || q >= at.q_len) return;
    const KeyParts& parts = key_parts(args);
    const long long nth = number_of(at.h, q);
    // Results of a row without pairs may be anything: this leaves them out.
    if (sums.sum == 0.0f) sums.over = -infinity;
    reinterpret_cast<RowPartial*>(parts.sums)[part * parts.rows + nth] = sums;
    if (part == 0) reinterpret_cast<float2*>(parts.rests)[nth] = {rest, sink};
  }

  /// The factor of dropout, or 1.
  __device__ float dropped_factor() const {
    if constexpr (User::traits.drops)
      return user.drop_factor(head);
    else
      return 1;
  }
  /// Between the two walks: computes per_power of both rows, and stores lse and max.
  __device__ void end_sums(const Work& work, bool empty) {
    static_assert(!is_in_parts<Tile> && !has_before<Tile>);
    const int r = lane & 1, q = work.tile * queries_of<Tile> + query(lane / 4 + 8 * r);
    const float sums[2] = {row_sum(l[0]), row_sum(l[1])}, sum = empty ? 0.0f : r ? sums[1] : sums[0];
    const bool write = lane % 4 < 2 && (Tile::heads == 1 || head_of(lane / 4) < work.heads.count);
    of_both(ended(at, head, q, sum,
                  fixed ? most_of(user)
                  : r   ? m[1]
                        : m[0],
                  most_exponent<Element>, write)
                .own,
            this->per_power);
  }
  /// The factor of results whose probabilities were known: NaN if the row's sum was, though prob() may hide it.
  __device__ static float of_known(float per_power) {
    return __float_as_uint(per_power) == __float_as_uint(-0.0f) ? 0.0f : 1 + (per_power - per_power);
  }

  /// What each lane has of one of its two rows, for both.
  __device__ void of_both(float x, float (&rows)[2]) const {
    rows[0] = __shfl_sync(~0u, x, lane & ~1);
    rows[1] = __shfl_sync(~0u, x, lane | 1);
  }
  __device__ void scale(const float (&by)[2]) {
    // A row without pairs may hold any sums.
    if (__any_sync(~0u, by[0] == 0.0f || by[1] == 0.0f)) {
#pragma unroll
      for (int i = 0; i < Tile::dv / 2; ++i) o[i] = by[i / 2 % 2] == 0.0f ? 0.0f : o[i];
      pin(o);
    }
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) o[i] *= by[i / 2 % 2];
  }
  /// o = o / l; lse and max.
  __device__ void finish(const Work& work, bool empty, bool mine) {
    if constexpr (two_walks<User>) return scale({of_known(this->per_power[0]), of_known(this->per_power[1])});
    // The four threads of two rows end one row each: the even lanes the first, the odd lanes the second.
    const int r = lane & 1, q = work.tile * queries_of<Tile> + query(lane / 4 + 8 * r);
    if (Tile::heads > 1 && head_of(lane / 4) >= work.heads.count) mine = false;
    const float sums[2] = {row_sum(l[0]), row_sum(l[1])}, sum = r ? sums[1] : sums[0], top = r ? m[1] : m[0];
    const RowPartial all{empty ? 0.0f : sum, fixed ? most_of(user) : top};
    const bool write = mine && lane % 4 < 2;
    if constexpr (is_in_parts<Tile>) return leave_row(at, head, q, all, write);
    const Factors factors = ended(at, head, q, all.sum, all.over, most_exponent<Element>, write);
    float by[2];
    of_both(factors.own * dropped_factor(), by);
    scale(by);
    if constexpr (has_before<Tile>) {
      float before[2];
      of_both(factors.before, before);
      if (mine) add_before(work, before);
    }
  }

  /// Adds the results over other keys. A result whose factor is 0 may hold anything.
  __device__ void add_before(const Work& work, const float (&by)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int position = entry.queries.start + work.tile * queries_of<Tile> + query(lane / 4 + 8 * r);
      if (by[r] == 0.0f) continue;
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int column = 8 * i + 2 * (lane & 3) + e; column < args.dv)
            o[4 * i + 2 * r + e] += by[r] * o_before(args, at.b, at.h, position, column);
    }
  }

  /// True if a result is non-finite: then a value is, and a masked-out pair may have added 0 times NaN.
  __device__ bool has_non_finite() const {
    float zero[4] = {};
#pragma unroll
    for (int i = 0; i < Tile::dv / 2; ++i) zero[i % 4] += o[i] * 0.0f;
    return !(zero[0] + zero[1] + (zero[2] + zero[3]) == 0.0f);
  }
  __device__ Out* result(int h, int q) const {
    return static_cast<Out*>(args.o.data) + at.b * args.o.batch + h * args.o.head +
           (entry.queries.start + q) * args.o.position;
  }

  /// Bytes from a chunk of results to the next.
  static constexpr int o_stride = (leave_over_values<Tile> ? 64 : Tile::m) * chunk_bytes;

  /// Stores the results of a warp's 16 rows through shared memory, in swizzled rows of 128 bytes. `memory`: the
  /// memory of values that its warpgroup's results go through, if leave_over_values.
  __device__ void store(const Work& work, unsigned memory) {
    if constexpr (is_in_parts<Tile>) return leave(work);
    const unsigned into = leave_over_values<Tile> ? memory + 16 * warp * chunk_bytes
                                                  : shared.o().from(64 * group + 16 * warp);
    const int line = lane & 15;
#pragma unroll
    for (int i = 0; i < Tile::dv / 16; ++i) {
      const unsigned address = into + i / 4 * o_stride + line * chunk_bytes +
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
      for (int c = 0; c < Shared::at.o_chunks; ++c) {
        const unsigned from = into + c * o_stride;
        if constexpr (Tile::heads == 1)
          store_box(args.o_map, from, c * Shared::o_chunk, entry.queries.start + q, first, batch);
        else
          store_box_of_heads(
              args.o_map, from,
              {c * Shared::o_chunk, first % args.group, entry.queries.start + q, first / args.group, batch});
      }
      store_commit();
    }
  }
  /// Leaves the results over a part of the keys.
  __device__ void leave(const Work& work) const {
    if (head_of(lane / 4) >= work.heads.count) return;
    const int q = work.tile * queries_of<Tile> + query(lane / 4);
    float* row = left(at.h, q) + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (q + below * r < at.q_len)
#pragma unroll
        for (int i = 0; i < Tile::dv / 8; ++i)
          if (8 * i < args.dv)
            *reinterpret_cast<float2*>(row + 8 * i) = {o[4 * i + 2 * r] * dropped_factor(),
                                                       o[4 * i + 2 * r + 1] * dropped_factor()};
      row += below * args.dv;
    }
  }
  /// Stores element by element if a packed sequence ends within the warp's rows: TMA would overwrite rows of the next
  /// sequence.
  __device__ void store_some(const Work& work, unsigned from, int q) const {
    constexpr int unit = 8;  // elements in 16 bytes, which stay together
    const int units = (args.dv + unit - 1) / unit;
#pragma unroll 1
    for (int i = lane; i < (at.q_len - q) * Tile::heads * units; i += 32) {
      const int line = i / units, nth = i % units;
      if (head_of(line) >= work.heads.count) continue;
      const unsigned address = from + nth / 8 * o_stride + line * chunk_bytes + ((nth % 8 ^ (line & 7)) << 4);
      Out* to = result(work.heads.first + head_of(line), q + line / Tile::heads) + nth * unit;
#pragma unroll 1
      for (int e = 0; e < min(args.dv - nth * unit, unit); ++e) global_put(to + e, shared_get_half(address + 2 * e));
    }
  }

  // ---- the exact path: rows with non-finite values and masked-out pairs ----

  /// The batch entry and head of the warp's nth row; the same in every thread.
  __device__ Where of_row(const Work& work, int nth) const {
    Where out = at;
    if constexpr (Tile::heads > 1) out.h = work.heads.first + head_of(nth);
    return out;
  }
  __device__ typename User::Head head_at(const Where& at) const { return Tile::heads == 1 ? head : user.head(at); }
  __device__ float factor_at(const typename User::Head& head) const {
    return Tile::heads == 1 ? factor : factor_of(user, head);
  }

  /// Recomputes rows pair by pair, some fifty times slower, if values are non-finite and pairs are masked out: a
  /// masked-out value must not reach a result, and a matrix product skips nothing. A warp takes one row after another.
  __device__ void by_pairs(const Work& work, const Walk& walk) {
    Source source(args, shared.base);
    source.enter(work.b, work.heads.first / args.group, entry);
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int q = uniform(work.tile * queries_of<Tile> + query(r));
      if (q >= at.q_len) return;
      if (head_of(r) >= work.heads.count) continue;
      // This row may belong to a different head than the thread's own rows.
      row_by_pairs(source, walk, of_row(work, r), q);
    }
  }

 private:
  /// 0 in a row of a missing page, as tiles have it.
  __device__ static float element_of(const Element* line, int j) {
    if constexpr (is_paged<Tile>)
      if (!line) return 0;
    return f32(line[j]);
  }
  using Source = typename KeySourceOf<Tile>::Type;
  static constexpr int lanes = 32;
  /// Calls f(x, column) for this lane's columns of a row.
  template <int N, class F>
  __device__ void each_of(float (&list)[N], int count, const F& f) const {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (lane + lanes * j < count) f(list[j], lane + lanes * j);
  }

  __device__ void row_by_pairs(const Source& source, const Walk& walk, const Where& at, int q) {
    const auto head = head_at(at);
    const float factor = factor_at(head);
    const Int q_at = entry.query(q);
    const auto my_row = user.row(head, at, q_at);
    const Reach<User> reach(user, head, my_row, at, q_at, 0);
    float mine[(Tile::d + lanes - 1) / lanes], out[(Tile::dv + lanes - 1) / lanes] = {};
    const Element* q_line = static_cast<const Element*>(args.q.data) + at.b * args.q.batch + at.h * args.q.head +
                            (entry.queries.start + q) * args.q.position;
    each_of(mine, args.d, [&](float& x, int j) { x = f32(q_line[j]); });
    float top = -infinity, sum = 0, per_power = 0;
    // With two walks, the first one finds the sum alone.
#pragma unroll 1
    for (int nth = 0; nth < (two_walks<User> ? 2 : 1); ++nth) {
#pragma unroll 1
      for (int i = 0; i < walk.count * n; ++i) {
        const int key = walk.tile(i / n) * n + n - 1 - i % n, kv = entry.key(key);
        const Int kv_at = kv;
        if (kv >= at.kv_len) continue;
        const auto col = user.col(head, at, origin, kv_at);
        // All lanes agree; the vote tells the compiler.
        if (!__any_sync(~0u, reach.holds(kv) && user.keep(head, my_row, col, at, q_at, kv_at))) continue;
        const Element* k_line = source.key(key);
        float x = 0;
        each_of(mine, args.d, [&](float y, int j) { x += y * element_of(k_line, j); });
#pragma unroll
        for (int step = 1; step < lanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
        x = User::traits.scaled ? x * factor : user.exponent(x, head, my_row, col, at, origin, q_at, kv_at);
        if (__any_sync(~0u, x == -infinity)) continue;
        float p, old = 1;
        if (two_walks<User> && nth == 1) {
          p = power_of_two(x - top) * per_power;
        } else {
          const float most = fmaxf(top, x);
          old = top == -infinity ? 0.0f : power_of_two(top - most);
          p = power_of_two(x - most);
          sum = sum * old + p;
          top = most;
          if (two_walks<User>) continue;
        }
        if constexpr (User::traits.has_prob) p = user.prob(p, head, my_row, col, at, q_at, kv_at);
        const Element* v_line = source.value(key);
        old = to_degree<User>(old);
        each_of(out, args.dv, [&](float& y, int j) { y = (old == 0.0f ? 0.0f : y * old) + p * element_of(v_line, j); });
      }
      if constexpr (two_walks<User>)
        if (nth == 0) per_power = ended(at, head, q, sum, top, 0, lane == 0).own;
    }
    if constexpr (is_in_parts<Tile>) {
      leave_row(at, head, q, {sum, top}, lane == 0);
      float* const row = left(at.h, q);
      return each_of(out, args.dv, [&](float y, int j) { row[j] = y; });
    }
    const Factors by = two_walks<User> ? Factors{of_known(per_power), 0} : ended(at, head, q, sum, top, 0, lane == 0);
    Out* o_line = result(at.h, q);
    each_of(out, args.dv, [&](float y, int j) {
      float x = by.own == 0.0f ? 0.0f : y * by.own;
      if constexpr (has_before<Tile>)
        if (by.before != 0.0f) x += by.before * o_before(args, at.b, at.h, entry.queries.start + q, j);
      if constexpr (sizeof(Out) == 2)
        o_line[j] = {static_cast<unsigned short>(pack<Out>(x, 0.0f))};
      else
        o_line[j] = x;
    });
  }
};

}  // namespace attune

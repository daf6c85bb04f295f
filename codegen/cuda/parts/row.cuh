// codegen/cuda/parts/row.cuh — a row of scores: powers of two, maxima and sums, the end of its softmax, parts of it
// over some keys, its results
#pragma once

#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/parts/entry.cuh"

namespace attune {

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000u);
constexpr float ln2 = 0.693147180559945309f;

/// Converts exponents of two to scores. The lowest float, a common mask value, stays itself: no exponent is lower.
__device__ inline float back(float x) { return x == -0x1.fffffep127f ? x : x * ln2; }

/// Results below 2^-126 are 0.
__device__ inline float power_of_two(float x) { return fast::exp2(x); }
__device__ inline bool finite(float x) { return fabsf(x) < infinity; }

/// Maximum and sum over the four threads that share a row.
__device__ inline float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// The sum over a warp, in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

/// The factor from scores, as they are compared with a maximum, to exponents. A factor of 0 would turn masked-out pairs
/// into NaN; the smallest positive number has the same effect on other scores.
template <class User>
__device__ inline float factor_of(const User& user, const typename User::Head& head) {
  if constexpr (User::traits.scaled)
    return fmaxf(user.factor(head), 0x1p-126f);
  else
    return 1;
}

/// True if powers are relative to User::traits.most, without a running maximum. Powers of these would underflow.
template <class Tile, class User>
constexpr bool fixed_maximum = User::traits.bounded && !Tile::max &&
                               !ElementOf<typename Tile::Element>::needs_maximum && User::traits.degree <= 1;

/// True if powers are relative to their rows' true maxima: the call asks for these, or a square of powers above 1 may
/// be more than f16 holds.
template <class Tile, class User>
constexpr bool true_maximum = Tile::max ||
                              (User::traits.degree > 1 && ElementOf<typename Tile::Element>::needs_maximum);

/// True if the prob mod needs each row's sum first: kernels then visit a row's keys twice.
template <class User>
constexpr bool two_walks = User::traits.has_prob&& User::traits.degree == 0;

/// What multiplies prob(p) if x, which is at least 0, multiplies p. With two walks x itself.
template <class User>
__device__ inline float to_degree(float x) {
  constexpr float degree = User::traits.degree;
  constexpr int halves = static_cast<int>(2 * degree);
  if constexpr (degree == 0 || degree == 1) {
    return x;
  } else if constexpr (2 * degree == halves) {  // more exact than a power of a logarithm
    float out = halves % 2 ? fast::sqrt(x) : 1.0f;
#pragma unroll
    for (int i = 0; i < halves / 2; ++i) out *= x;
    return out;
  } else {
    return power_of_two(degree * log2f(x));
  }
}

/// The sum of powers of two over a part of a row's keys, relative to `over`. Parts of a row can be added up once their
/// results are scaled to the same `over`.
struct RowPartial {
  float sum, over;
};

/// The final values of a row's softmax.
struct Ended {
  float factor;  ///< turns sums of prob(P) V into results; with two walks, powers into p
  float lse, max;
  bool plain;  ///< true if the row has pairs and a finite sum, so that only values can make results non-finite
};

/// Ends a row, given all of its keys: adds the sink, adds back rest(), and computes the factor of its results. A row
/// without pairs, or whose rest is -inf, has no results and no lse.
template <class User>
__device__ inline Ended end_of_row(const User& user, const typename User::Head& head, const typename User::Row& row,
                                   Where at, Int origin, Int q, RowPartial part) {
  const float rest = user.rest(head, row, at, origin, q);
  // NaN if rest is infinite or NaN: such a row has no lse.
  const float nan_if_non_finite = rest - rest;
  if (part.sum == 0.0f || rest == -infinity) {
    float lse = -infinity;
    if constexpr (User::traits.has_sink) lse = user.sink(head, at);
    return {0, lse < infinity ? lse : lse - lse, -infinity, false};
  }
  Ended out{to_degree<User>(1 / part.sum) + nan_if_non_finite,
            back(part.over + log2f(part.sum)) + rest + nan_if_non_finite, back(part.over) + rest,
            part.sum - part.sum == 0.0f};
  // If scores hold NaN, the maximum is NaN.
  if (part.sum != part.sum && part.over < infinity) out.max = part.sum;
  if constexpr (User::traits.has_sink) {
    const float logit = user.sink(head, at), sink = (logit - rest) * (1 / ln2);
    const bool above = sink > part.over || sink != sink;
    const float both = above ? sink : part.over;
    // (logit - rest) may leave f32 although the logit is finite: a row of the lowest float, which masks use.
    const float of_sink = above ? 1 + (logit - logit) : power_of_two(sink - both);
    const float lift = power_of_two(part.over - both), all = part.sum * lift + of_sink;
    out.factor = to_degree<User>(lift / all) + nan_if_non_finite;
    // Above the scores, the logit itself: less rest and plus rest again, it would have the rounding of rest.
    out.lse = (above ? logit + log2f(all) * ln2 : back(both + log2f(all)) + rest) + nan_if_non_finite;
  }
  return out;
}

// ---- parts of a row, each computed over some of its keys ------------------------------------------------------------

/// Four columns of a row of results, over some of its keys.
struct PartOfRow {
  float o[4] = {};
  RowPartial part{0, -infinity};

  struct Other {
    float4 o{};
    RowPartial part{0, -infinity};
  };
  /// Adds a part over other keys. The order of calls decides the last bits.
  template <class User, int Count>
  __device__ void add(const Other (&other)[Count]) {
    float over = part.over;
#pragma unroll
    for (int i = 0; i < Count; ++i) over = fmaxf(over, other[i].part.over);
    const float base = over == -infinity ? 0.0f : over;
    const auto join = [](float& x, float y, float by) { x = by == 0.0f ? x : x + y * by; };
    const float mine = power_of_two(part.over - base), mine_of_o = to_degree<User>(mine);
    // A share of 0 removes even non-finite results; but a NaN sum stays, because such a row has no largest score.
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = mine_of_o == 0.0f ? 0.0f : o[i] * mine_of_o;
    part = {mine == 0.0f && part.sum == part.sum ? 0.0f : part.sum * mine, over};
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float theirs = power_of_two(other[i].part.over - base), theirs_of_o = to_degree<User>(theirs);
      join(o[0], other[i].o.x, theirs_of_o);
      join(o[1], other[i].o.y, theirs_of_o);
      join(o[2], other[i].o.z, theirs_of_o);
      join(o[3], other[i].o.w, theirs_of_o);
      if (theirs != 0.0f || other[i].part.sum != other[i].part.sum) part.sum += other[i].part.sum * theirs;
    }
  }
};

// ---- results of another call over other keys, which are merged in ---------------------------------------------------

/// A row's own result, and another call's result for the same query over other keys; as in runtime/engines/merge.h.
struct Merged {
  float own, before;  ///< shares of the two outputs
  float lse;          ///< of all keys
};
__device__ inline Merged merged(float own, float before) {
  const float top = before != before || before > own ? before : own;
  // Neither result has a key: both outputs are 0.
  if (top == -infinity) return {1, 0, top};
  const float a = power_of_two((own - top) * (1 / ln2)), b = power_of_two((before - top) * (1 / ln2)), sum = a + b;
  return {a / sum, b / sum, top + ln2 * log2f(sum)};
}

template <class Args>
__device__ inline float lse_before(const Args& args, int b, int h, int position) {
  const Rows& rows = further(args).lse_before;
  return rows.data[b * rows.batch + h * rows.head + position * rows.position];
}
template <class Args>
__device__ inline float o_before(const Args& args, int b, int h, int position, int column) {
  const Strided& o = further(args).o_before;
  const long long at = b * o.batch + h * o.head + position * o.position + column * o.element;
  if (further(args).o_before_type == Stored::f32) return static_cast<const float*>(o.data)[at];
  const unsigned half = static_cast<const unsigned short*>(o.data)[at];
  return further(args).o_before_type == Stored::f16 ? low_of<f16>(half) : low_of<bf16>(half);
}

// ---- results: divided by the row's sum, merged, stored --------------------------------------------------------------

/// The factors of a row's result: o = (sum * factor) * own + before * o_before. `factor` and `own` are separate, so
/// that a row without pairs gives 0 whatever its sums are.
struct Finished {
  float factor, own, before;
  float lse;  ///< of all keys
};

/// Ends a row that has `lse_before` over other keys; ignored by Tiles without o_before.
template <class Tile>
__device__ inline Finished finish(const Ended& row, float lse_before) {
  if constexpr (!has_before<Tile>) return {row.factor, 1, 0, row.lse};
  const Merged with = merged(row.lse, lse_before);
  return {row.factor, with.own, with.before, with.lse};
}

/// A column of a row's results. o_before is read only if its factor is not 0 and the column exists, because it may
/// otherwise hold anything.
template <class Tile, class Args>
__device__ inline float result(const Args& args, const Finished& by, float sum, int b, int h, int position,
                               int column) {
  if constexpr (!has_before<Tile>) return by.factor == 0.0f ? 0.0f : sum * by.factor;
  float out = by.factor == 0.0f ? 0.0f : sum * by.factor * by.own;
  if (by.before != 0.0f && column < Tile::width_v) out += by.before * o_before(args, b, h, position, column);
  return out;
}

/// Stores a number of a row, lse or max, if the call asks for it.
__device__ inline void put_of_row(const Rows& rows, int b, int h, int position, float x) {
  if (rows.data) rows.data[b * rows.batch + h * rows.head + position * rows.position] = x;
}

/// True if a row of results has this column. If Tile::dv is rounded up, Tile::width_v is the width.
template <class Tile>
__device__ constexpr bool has_column(int column) {
  if constexpr (requires { Tile::width_v; })
    return column < Tile::width_v;
  else
    return true;
}

/// Stores N neighbours of a row's results, in one access if Tile::store says that their rows are aligned to it.
template <class Tile, int N>
__device__ inline void put_results(const Strided& o, long long offset, int column, const float (&x)[N]) {
  using Out = typename Tile::Out;
  Out* const into = static_cast<Out*>(o.data) + offset + column * o.element;
  constexpr int bytes = N * static_cast<int>(sizeof(Out));
  if constexpr (N % 2 == 0 && Tile::store >= bytes) {
    if (!has_column<Tile>(column)) return;
    if constexpr (N == 4 && sizeof(Out) == 2)
      *reinterpret_cast<uint2*>(into) = {pack<Out>(x[0], x[1]), pack<Out>(x[2], x[3])};
    else if constexpr (N == 4)
      *reinterpret_cast<float4*>(into) = {x[0], x[1], x[2], x[3]};
    else if constexpr (sizeof(Out) == 2)
      *reinterpret_cast<unsigned*>(into) = pack<Out>(x[0], x[1]);
    else
      *reinterpret_cast<float2*>(into) = {x[0], x[1]};
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (has_column<Tile>(column + i)) {
        if constexpr (sizeof(Out) == 2)
          into[i * o.element] = {static_cast<unsigned short>(pack<Out>(x[i], 0.0f))};
        else
          into[i * o.element] = x[i];
      }
  }
}

}  // namespace attune

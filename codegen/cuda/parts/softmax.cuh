// codegen/cuda/parts/softmax.cuh — shared by every kernel's softmax: powers of two, maxima and sums of a row, its end
#pragma once

#include "codegen/cuda/contract/mod.cuh"

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

/// True if powers are relative to User::traits.most, without a running maximum.
template <class Tile, class User>
constexpr bool fixed_maximum = User::traits.bounded && !Tile::max && !ElementOf<typename Tile::Element>::needs_maximum;

/// True if the prob mod needs each row's sum first: kernels then visit a row's keys twice.
template <class User>
constexpr bool two_walks = User::traits.has_prob && !User::traits.linear_prob;

/// The sum of powers of two over a part of a row's keys, relative to `over`. Parts of a row can be added up once their
/// results are scaled to the same `over`.
struct RowPartial {
  float sum, over;
};

/// The final values of a row's softmax.
struct Ended {
  float factor;  ///< turns sums of P V into results
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
  Ended out{1 / part.sum + nan_if_non_finite, back(part.over + log2f(part.sum)) + rest + nan_if_non_finite,
            back(part.over) + rest, part.sum - part.sum == 0.0f};
  // If scores hold NaN, the maximum is NaN.
  if (part.sum != part.sum && part.over < infinity) out.max = part.sum;
  if constexpr (User::traits.has_sink) {
    const float logit = user.sink(head, at), sink = (logit - rest) * (1 / ln2);
    const bool above = sink > part.over || sink != sink;
    const float both = above ? sink : part.over;
    // (logit - rest) may leave f32 although the logit is finite: a row of the lowest float, which masks use.
    const float of_sink = above ? 1 + (logit - logit) : power_of_two(sink - both);
    const float lift = power_of_two(part.over - both), all = part.sum * lift + of_sink;
    out.factor = lift / all + nan_if_non_finite;
    // Above the scores, the logit itself: less rest and plus rest again, it would have the rounding of rest.
    out.lse = (above ? logit + log2f(all) * ln2 : back(both + log2f(all)) + rest) + nan_if_non_finite;
  }
  return out;
}

}  // namespace attune

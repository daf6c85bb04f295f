// codegen/cuda/contract/gradient.cuh — the contract between a Mod's derivative and a backward kernel, and the gradient
// of a pair
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/sums.cuh"
#include "codegen/cuda/parts/row.cuh"

namespace attune {

/// Facts about a Mod's derivative, known when its source is written. Gradients of captured tensors are sums of terms,
/// one term per read. A term is summed along everything that its place in the tensor does not depend on.
struct GradientTraits {
  bool has_slope = false;  ///< slope() is not 1 everywhere
  bool delta_of_o = true;  ///< the sum of p dp along a row is dO . O; otherwise a kernel has to iterate over the row
#define ATTUNE_COUNT(name, ...) int by_##name = 0;
  ATTUNE_SUMS(ATTUNE_COUNT)
#undef ATTUNE_COUNT
  bool removes = true;   ///< pairs may be masked out: by keep(), limits, bands, or a score of -inf
  bool by_sink = false;  ///< sink() reads captured tensors whose gradients are asked for
};

/// The gradients of a pair: of its score, of q . k (past slope()), and of its probability.
struct Flow {
  float score, prob;
};

/// A Mod with its derivative. Fields are those of both; `s` is q . k before scaling, and p the probability before
/// prob(). Terms add to the sums that they are given, one element each; their places are exact sums (exact_sum.cuh).
template <class M>
concept Differentiable = Mod<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col, float x, Int i,
             Flow flow, float* sums, unsigned long long** places) {
  GradientTraits(M::gradient);
  x = m.slope(x, head, row, col, at, i, i, i);    // s, …, origin, q, kv: of scale * s
  x = m.prob_slope(x, head, row, col, at, i, i);  // p, …, q, kv
  Bands(m.q_bands(head, at, i, i, i, i));         // all queries [q_begin, q_end), keys [kv_begin, kv_end)
  // flow, s, p, …, origin, q, kv
  m.by_head(sums, flow, x, x, head, row, col, at, i, i, i);
  m.by_row(sums, flow, x, x, head, row, col, at, i, i, i);
  m.by_col(sums, flow, x, x, head, row, col, at, i, i, i);
  m.by_pair(flow, x, x, head, row, col, at, i, i, i);
  m.places_by_head(places, head, at);
  m.places_by_row(places, head, row, at, i);     // q
  m.places_by_col(places, head, col, at, i, i);  // origin, kv
  m.by_sink(x, head, at);                        // what flows to the sink
};

/// What the gradient of a pair needs of its row.
struct RowEnd {
  float under;  ///< p is 2^(exponent - under)
  float delta;
};

/// Exponents of this size are rounded by 4 and more, so that p = 2^(exponent - under) means nothing: where all scores
/// of a row are -1e12, each p would be 1 or a wrong power of two; where they are the lowest f32, infinite, and infinite
/// times a grad_o of 0 is NaN.
constexpr float too_far = 0x1p26f;

/// From a row's lse, which includes rest(). A row without pairs has no gradient. If lse is NaN, 2^(-inf - lse) would be
/// too, so that a pair that a score of -inf removes would not be 0: p is 0 for such a pair and infinite for others, and
/// delta is NaN. Only a prob mod that is no multiple of a power of p is given NaN, and tests each pair (gradient_of()).
/// In a row that is too far away each p is 0.
template <class User>
__device__ inline RowEnd row_end(const User&, float lse, float rest, float delta) {
  constexpr float most = 0x1.fffffep127f;
  if (lse == -infinity || rest == -infinity) return {infinity, 0};
  if constexpr (!two_walks<User>)
    if (lse != lse && finite(rest)) return {-most, lse};
  const float under = (lse - rest) * (1 / ln2);
  if (fmaxf(fabsf(lse), fabsf(under)) >= too_far && lse == lse) return {most, delta};
  return {under, delta};
}
/// The RowEnd of a missing row.
__device__ inline RowEnd no_row() { return {infinity, 0}; }

/// Numbers of a pair that a backward kernel replaces: q . k by the factor of grad_o in dV, and grad_o . v by the factor
/// of q and k in dK and dQ, before scaling.
struct PairNumbers {
  float s, dp;
};

/// A query and a key, with the fields of their head, row and column.
template <class User>
struct Pair {
  const typename User::Head& head;
  const typename User::Row& row;
  const typename User::Col& col;
  Where at;
  Int origin, q, kv;
};

/// A Pair for which the kernel has the values of User::Held.
template <class User>
struct HeldPair : Pair<User> {
  typename User::Held held;
};

/// A Pair under dropout, of which the kernel has drawn whether it is kept.
template <class User>
struct DrawnPair : Pair<User> {
  bool is_kept;
};

/// prob() of a pair, and its derivative.
template <class User>
__device__ inline float prob_of(const User& user, const Pair<User>& of, float p) {
  return user.prob(p, of.head, of.row, of.col, of.at, of.q, of.kv);
}
template <class User>
__device__ inline float prob_of(const User& user, const DrawnPair<User>& of, float p) {
  return of.is_kept ? p * user.drop_factor(of.head) : 0.0f;
}
template <class User>
__device__ inline float prob_slope_of(const User& user, const Pair<User>& of, float p) {
  return user.prob_slope(p, of.head, of.row, of.col, of.at, of.q, of.kv);
}
template <class User>
__device__ inline float prob_slope_of(const User& user, const DrawnPair<User>& of, float) {
  return of.is_kept ? user.drop_factor(of.head) : 0.0f;
}

/// A factor below the exponent of a pair.
template <class User>
__device__ inline float exponent_of(const User& user, const Pair<User>& of, float s) {
  return User::traits.scaled ? s : user.exponent(s, of.head, of.row, of.col, of.at, of.origin, of.q, of.kv);
}
template <class User>
__device__ inline float exponent_of(const User& user, const HeldPair<User>& of, float s) {
  return user.exponent(s, of.held, of.head, of.row, of.col, of.at, of.origin, of.q, of.kv);
}
/// The derivative of a pair's score.
template <class User>
__device__ inline float slope_of(const User& user, const Pair<User>& of, float s) {
  return user.slope(s, of.head, of.row, of.col, of.at, of.origin, of.q, of.kv);
}
template <class User>
__device__ inline float slope_of(const User& user, const HeldPair<User>& of, float s) {
  return user.slope(s, of.held, of.head, of.row, of.col, of.at, of.origin, of.q, of.kv);
}

/// The probability of a pair, before prob(): 0 if it is masked out. `factor`: from factor_of().
template <class User, class Of>
__device__ inline float probability_of(const User& user, const Of& of, float factor, float under, bool kept, float s) {
  // Computed for every pair, so that pairs at one distance share what they read: a table by distance is 19 % slower
  // with a load under each pair's condition.
  const float exponent = exponent_of(user, of, s);
  return kept ? power_of_two(exponent * factor - under) : 0.0f;
}

/// False if a score of -inf removes the pair. Its p is 0 then, unless row_end() gave NaN. Scaled scores are not
/// tested: theirs are -inf only where q . k is.
template <class User, class Of>
__device__ inline bool score_keeps(const User& user, const Of& of, float s) {
  return User::traits.scaled || exponent_of(user, of, s) != -infinity;
}

/// The gradient of a score, given dP times prob'(P). The factor of a pair with p = 0 may be NaN.
template <class User>
__device__ inline float ds_of(float p, float flow, float delta) {
  return User::traits.has_prob && !User::traits.drops && p == 0.0f ? 0.0f : p * (flow - delta);
}

/// The gradient of a pair. A pair that is masked out gives 0, whatever its operands hold; so does one with p = 0 if
/// prob(0) is 0. Otherwise p is 0 for scores 88 below lse. `terms` gets flow, s and p of every other pair.
template <class User, class Of, class Terms>
__device__ inline PairNumbers gradient_of(const User& user, const Of& of, float factor, RowEnd end, bool kept,
                                          PairNumbers in, Terms terms) {
  const float p = probability_of(user, of, factor, end.under, kept, in.s);
  PairNumbers out{p, in.dp};
  if constexpr (User::traits.has_prob) {
    out.s = prob_of(user, of, p);
    out.dp *= prob_slope_of(user, of, p);
  }
  Flow flow{p * (out.dp - end.delta), in.dp};
  out.dp = flow.score;
  if constexpr (User::gradient.has_slope) out.dp *= slope_of(user, of, in.s);
  if constexpr (two_walks<User>) {
    if (!kept || end.under == infinity || !score_keeps(user, of, in.s)) return {0, 0};
    if (p == 0.0f) {
      if (User::traits.keeps_zero) return {0, 0};
      flow.score = out.dp = 0;
    }
  } else {
    if (p == 0.0f) return {0, 0};
  }
  terms(flow, in.s, p);
  return out;
}

}  // namespace attune

// tests/numerics/dense.h — plain dense attention at the inputs' type with f32 sums: the yardstick of engines' errors
#pragma once

#include <vector>

#include "compiler/problem.h"

namespace attune::tests {

// Whole matrices of scores and probabilities, head by head. q . k, mods, softmax and sums are in f32. For 16-bit
// inputs, probabilities and the scores' gradients are rounded to the inputs' type, as operands of products are; results
// are rounded to the type of their tensors. NaN, infinities and empty rows are as in the oracle.

/// The size of a gradient's terms: a bound on the effect of independent roundings.
struct Terms {
  /// The root of the sum of the terms' squares, with dp and delta separate: the gradient's size if nothing cancelled.
  double apart = 0;
  /// The same of whole terms, each of which an engine may round to the inputs' type; of captured gradients alone. The
  /// products whose sum is delta = grad_o . o are terms too, once for o, which is rounded, and once for the
  /// probabilities that o sums: each times the sum of p times derivatives over the row's pairs that read an element.
  double whole = 0;
  /// The effect of rounding operands of products to their 16-bit type, by half a unit in the last place. For o and dv
  /// each probability is rounded: equal ones of a row (of a column, for dv) are off by the same factor, so their
  /// effects add up; those of different probabilities are independent, so their squares do. For dq and dk the gradient
  /// of each score is rounded, and all count as different. For o also the roundings of the exponent of a sink above a
  /// row's scores, by which all of the row is off.
  double operands = 0;
  /// The effect of every small probability, before or after a prob mod, if it were less by 1. A
  /// GPU may take a number below 2^-126 as 0, so the probabilities of a row whose sink is 88 above its scores are all
  /// less by up to 2^-126, and so are the products with a prob mod of 2^-126.
  double flushed = 0;
};

/// `products`: the type that probabilities are rounded to. Those of e4m3 have a power of two that makes the largest of
/// a row 2^7 to 2^8 meanwhile, and scores are summed up as products of e4m3 do it. Returns the terms of o;
/// `Terms::operands` only if `wants_terms`: they take as long as the rest.
Terms dense_forward(const compiler::BoundMod& bound, const Forward& call, const compiler::Problem& problem,
                    DType products, bool wants_terms = true);
/// For a Mod with derivatives. `lse_steps`: moves each lse by this many steps of f32. A forward's lse is right to a
/// rounding, and it and the score are rounded once more as exponents of 2, half a step each; so a change by that much
/// is not a backward's error. `forward`: the mod that gives lse, for a forward that rounds s in another way than its
/// backward; where a score rises steeply with s, that counts for more than those steps. Returns the terms of dq, dk, dv
/// and each captured gradient, `wants_terms` as for a forward.
std::vector<Terms> dense_backward(const compiler::BoundMod& bound, const Backward& call,
                                  const compiler::Problem& problem, int lse_steps = 0,
                                  const compiler::BoundMod* forward = nullptr, bool wants_terms = true);

}  // namespace attune::tests

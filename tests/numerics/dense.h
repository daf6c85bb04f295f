// tests/numerics/dense.h — plain dense attention at the inputs' type with f32 sums: the error an engine is measured by
#pragma once

#include <vector>

#include "compiler/problem.h"

namespace attune::tests {

// Whole matrices of scores and probabilities, one head after the other. q . k, mods, softmax and sums in f32; for
// 16-bit inputs, probabilities and the scores' gradients are rounded to the inputs' type, as operands of products are;
// results to the type of their tensors. NaN, infinities and empty rows as the oracle has them.

void dense_forward(const compiler::BoundMod& bound, const Forward& call, const compiler::Problem& problem);
/// Needs a Mod with its derivatives. `lse_steps` moves each lse by that many f32 steps: a forward's lse is correct to a
/// rounding, and it and the score are rounded once more as exponents of 2, half a step each, so a change from that
/// alone is not an error of a backward. Returns, for dq, dk, dv and each captured gradient, the root of the sum of the
/// squares of all terms added up in it, with dp and delta counted separately: its size if the terms did not cancel.
std::vector<double> dense_backward(const compiler::BoundMod& bound, const Backward& call,
                                   const compiler::Problem& problem, int lse_steps = 0);

}  // namespace attune::tests

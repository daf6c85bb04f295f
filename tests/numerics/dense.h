// tests/numerics/dense.h — plain dense attention at the inputs' type with f32 sums: the error an engine is measured by
#pragma once

#include "compiler/problem.h"

namespace attune::tests {

// Whole matrices of scores and probabilities, one head after the other. q . k, mods, softmax and sums in f32; for
// 16-bit inputs, probabilities and the scores' gradients are rounded to the inputs' type, as operands of products are;
// results to the type of their tensors. NaN, infinities and empty rows as the oracle has them.

void dense_forward(const compiler::Traced& traced, const Forward& call, const compiler::Problem& problem);
/// Of a Mod with its derivatives.
void dense_backward(const compiler::Traced& traced, const Backward& call, const compiler::Problem& problem);

}  // namespace attune::tests

// codegen/facts/exponent.h — the score as a power of two, with its factors moved to where they cost least; where its
// part without s is largest
#pragma once

#include "codegen/cuda/contract/traits.cuh"
#include "compiler/mod.h"

namespace attune::codegen {

// ---- factors --------------------------------------------------------------------------------------------------------

/// log2(e) * core(scale * s) in real arithmetic. Factors that are constant per head are collected, merged, and carried
/// down into sums (not into conditions of choices), so that they multiply terms per head, row or column only that
/// often:
///   30 * tanh(s / 30)           ->  43.28 * tanh(s * (scale / 30))
///   s + slope[h] * f32(kv - q)  ->  s * (1.44 * scale) + (slope[h] * 1.44) * f32(kv - origin)
ir::Expr exponent(const ir::Expr& core, const ir::Expr& scale);

/// The same for a value that is not an exponent, a prob mod's for example.
ir::Expr gathered(const ir::Expr& e);

// ---- the largest part without s -------------------------------------------------------------------------------------

/// An exponent that is a function of s plus `term`, which varies along a row. Null: it is not.
struct Peaked {
  ir::Expr term;
  Peak peak = Peak::unknown;
};
/// Of the exponent, the first of `levels.element`.
Peaked peaked(const compiler::Levels& levels);

}  // namespace attune::codegen

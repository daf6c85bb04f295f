// codegen/facts/exponent.h — the score as a power of two, with its factors moved to where they cost least
#pragma once

#include "compiler/mod.h"

namespace attune::codegen {

/// log2(e) * core(scale * s) in real arithmetic. Factors that are constant per head are collected, merged, and carried
/// down into sums (not into conditions of choices), so that they multiply terms per head, row or column only that
/// often:
///   30 * tanh(s / 30)           ->  43.28 * tanh(s * (scale / 30))
///   s + slope[h] * f32(kv - q)  ->  s * (1.44 * scale) + (slope[h] * 1.44) * f32(kv - origin)
ir::Expr exponent(const ir::Expr& core, const ir::Expr& scale);

/// The same for a value that is not an exponent, a prob mod's for example.
ir::Expr gathered(const ir::Expr& e);

}  // namespace attune::codegen

// codegen/exponent.h — the score as a power of two, with what multiplies it moved to where it costs least
#pragma once

#include "compiler/mod.h"

namespace attune::codegen {

/// log2(e) * core(scale * s) for real numbers. Factors that are the same throughout a head are gathered, merged, and
/// carried down into sums (not into what a choice hangs on), so that they meet once per head, row or column what varies
/// no more often:
///   30 * tanh(s / 30)           ->  43.28 * tanh(s * (scale / 30))
///   s + slope[h] * f32(kv - q)  ->  s * (1.44 * scale) + (slope[h] * 1.44) * f32(kv - origin)
ir::Expr exponent(const ir::Expr& core, const ir::Expr& scale);

/// The same for a value that is no exponent, such as a prob mod's.
ir::Expr gathered(const ir::Expr& e);

}  // namespace attune::codegen

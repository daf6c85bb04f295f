// compiler/trim.h — an Int that is only looked at within limits, without the clamps that these make pointless
#pragma once

#include "ir/range.h"

namespace attune::compiler {

/// Equal to `e` once both are clamped to [low, high]; the arithmetic in it wraps no more than that of `e`.
/// Sums with literals are gathered: x - 1 + 1 is x.
ir::Expr trim(const ir::Expr& e, double low, double high, ir::Ranger& range);

/// `e` with x < y for x <= y - 1 wherever y - 1 does not wrap, and each side of such a comparison trimmed to where the
/// other one is.
ir::Expr strict(const ir::Expr& e, ir::Ranger& range);

}  // namespace attune::compiler

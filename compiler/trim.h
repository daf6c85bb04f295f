// compiler/trim.h — drops clamps from an Int where the limits it is used within make them redundant
#pragma once

#include "ir/range.h"

namespace attune::compiler {

/// Equal to `e` once both are clamped to [low, high]; its arithmetic wraps only where that of `e` does.
/// Merges literals in sums: x - 1 + 1 becomes x.
ir::Expr trim(const ir::Expr& e, double low, double high, ir::Ranger& range);

/// `e` with x <= y - 1 rewritten to x < y wherever y - 1 does not wrap, and each side of such a comparison trimmed to
/// the other side's range.
ir::Expr strict(const ir::Expr& e, ir::Ranger& range);

}  // namespace attune::compiler

// compiler/derive.h — the derivative of an expression by s or p, and the terms of each captured tensor's gradient
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// Reverse mode. `by` is S for a score, P for a prob mod, nothing for a sink. Follows the conventions of semantics.md:
/// the side that a `where`, `min`, `max` or `clamp` did not take gets nothing, not even a NaN.
Derivative derive(const ir::Expr& e, std::optional<ir::Input> by);

}  // namespace attune::compiler

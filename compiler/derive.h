// compiler/derive.h — the derivative of an expression by s or p, and what each captured tensor's gradient gets
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// Reverse mode. `by` is S for a score, P for a prob mod, nothing for a sink. The conventions of semantics.md hold;
/// what a `where`, `min`, `max` or `clamp` did not take passes nothing, NaN included.
Derivative derive(const ir::Expr& e, std::optional<ir::Input> by, const ir::Signature& signature);

}  // namespace attune::compiler

// compiler/level.h — what varies per head, row, column, element
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// Where an expression may be evaluated at the earliest. Call: once per launch (literals, parameters, lengths of a
/// dense batch aside); Head: per (batch, head); Element: per (q, kv).
enum class Vary : std::uint8_t { Call, Head, Row, Col, Element };
Vary varies(const ir::Expr& e);

/// Splits score, mask and prob into fields per head, row and column, and what is left per element.
Levels level(const ir::Expr& score, const ir::Expr& mask, const ir::Expr& prob);

}  // namespace attune::compiler

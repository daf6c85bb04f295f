// compiler/fold.h — a score split for the loop over pairs: terms that cancel, affine parts, bounds, and fields that are
// computed once per head, row or column
#pragma once

#include "compiler/mod.h"

namespace attune::compiler {

/// A score as a term that cancels along a row, an affine part in s, and bounds for the rest.
Fold fold(const ir::Expr& score, const ir::Bounds& bounds = {});

/// How often an expression has a new value: once per (batch, head) or less, per row, per column, per pair.
enum class Vary : std::uint8_t { Head, Row, Col, Element };
Vary varies(const ir::Expr& e);

/// Splits expressions into fields per head, row and column, and the remainder of each per element.
Levels level(std::span<const ir::Expr> roots);

}  // namespace attune::compiler

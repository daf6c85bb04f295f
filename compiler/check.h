// compiler/check.h — refuse expressions with an Error: what a Mod may read once, where it may read once per shape
#pragma once

#include "compiler/problem.h"

namespace attune::compiler {

/// Of the expressions alone: each reads only what means something where it stands.
void check(const Mod& mod);

/// Capture indices against extents: an Error when an index is outside for every coordinate.
/// Gives the reads that could not be proven inside (an engine clamps those).
std::vector<ir::Expr> check_reads(const Mod& mod, std::span<const Tensor> captures, const Problem& problem);

}  // namespace attune::compiler

// compiler/check.h — Errors for expressions: once per Mod for the inputs they read, once per shape for their indices
#pragma once

#include "compiler/problem.h"

namespace attune::compiler {

/// Checks without tensors: each expression reads only inputs that exist where it is evaluated.
void check(const Mod& mod);

/// Checks capture indices against extents: an Error if an index is outside at every coordinate, or if it is a function
/// of one coordinate and is outside at a value of that coordinate where nothing removes the pair. Returns the reads
/// that could not be proven inside (an engine clamps those).
std::vector<ir::Expr> check_reads(const Mod& mod, std::span<const Tensor> captures, const Problem& problem);

}  // namespace attune::compiler

// codegen/reads.h — which reads of captured tensors a GPU kernel may leave unclamped
#pragma once

#include <span>
#include <vector>

#include "compiler/mod.h"

namespace attune::codegen {

/// The per-pair reads of these expressions, if all their indices are sums of q, kv and per-head values: indices in
/// range at a tile's corners are then in range inside. Otherwise none.
std::vector<ir::Expr> linear_reads(std::span<const ir::Expr> roots);

/// True if any of these reads a captured tensor.
bool read_captures(std::span<const ir::Expr> roots);

/// True if offsets into any of these need more than 32 bits.
bool reach_far(std::span<const Tensor> captures);

}  // namespace attune::codegen

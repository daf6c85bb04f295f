// codegen/reads.h — which reads of captured tensors a kernel for GPUs takes as they come, and which it clamps
#pragma once

#include <span>
#include <vector>

#include "compiler/mod.h"

namespace attune::codegen {

/// The reads that these make pair by pair, if the indices of all of them are sums of q, kv and what a head has: what
/// holds at the corners of a tile holds within. Else none.
std::vector<ir::Expr> linear_reads(std::span<const ir::Expr> roots);

/// Does any of these read a captured tensor?
bool read_captures(std::span<const ir::Expr> roots);

/// Do offsets into one of these need more than 32 bits?
bool reach_far(std::span<const Tensor> captures);

}  // namespace attune::codegen

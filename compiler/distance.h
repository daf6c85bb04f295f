// compiler/distance.h — scores that are one table: dense biases, an element for each pair, and expressions of q - kv
// alone
#pragma once

#include "compiler/mod.h"
#include "ir/node.h"

namespace attune::compiler {

/// True for a read whose last index is kv and whose others are the same for all pairs of a row: along a row it reads
/// one element after another.
bool is_dense(const ir::Expr& read);

/// The slots of the tensors whose elements kernels may copy, since this expression reads them so: of its first read of
/// f32, f16 or bf16, and of another if both have 16 bits.
std::vector<std::uint32_t> dense_slots(const ir::Expr& e, const Mod& mod);

/// True if the expression is proven to have the same value for all pairs of one batch entry and head with the same q -
/// kv. Always false for an expression that uses s, p or random numbers; false if there is no proof, e.g. for q + 1 <
/// kv, where a sum might wrap.
bool by_distance(const ir::Expr& e);

}  // namespace attune::compiler

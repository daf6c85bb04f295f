// compiler/distance.h — scores that are one table: dense biases, an element for each pair, and expressions of q - kv
// alone
#pragma once

#include <functional>
#include <vector>

#include "compiler/mod.h"
#include "ir/node.h"

namespace attune::compiler {

/// True for a read whose last index is kv and whose others are the same for all pairs of a row: along a row it reads
/// one element after another.
bool is_dense(const ir::Expr& read);

/// The dense reads of an expression whose elements kernels may copy, in order: up to two of f16 or bf16, or the first
/// alone if it is of f32; of those tensors alone whose slots `may` allows.
std::vector<ir::Expr> copied_reads(const ir::Expr& e, const Mod& mod, const std::function<bool(std::uint32_t)>& may);

/// True if the expression is proven to have the same value for all pairs of one batch entry and head with the same q -
/// kv. Always false for an expression that uses s, p or random numbers; false if there is no proof, e.g. for q + 1 <
/// kv, where a sum might wrap.
bool by_distance(const ir::Expr& e);

}  // namespace attune::compiler

// compiler/distance.h — expressions that depend on q and kv only through q - kv
#pragma once

#include "ir/node.h"

namespace attune::compiler {

/// True if the expression is proven to have the same value for all pairs of one batch entry and head with the same q -
/// kv. Always false for an expression that uses s, p or random numbers; false if there is no proof, e.g. for q + 1 <
/// kv, where a sum might wrap.
bool by_distance(const ir::Expr& e);

}  // namespace attune::compiler

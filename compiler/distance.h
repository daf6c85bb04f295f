// compiler/distance.h — expressions that depend on q and kv through their distance alone
#pragma once

#include "ir/node.h"

namespace attune::compiler {

/// Has the expression the same value for all pairs with the same q - kv, of one batch entry and head? Never true of one
/// that uses s, p or random numbers; may be false of one that does not show it, such as q + 1 < kv, where a sum might
/// wrap.
bool by_distance(const ir::Expr& e);

}  // namespace attune::compiler

// codegen/limits.h — what of a mask is a first and a last key for each row
#pragma once

#include "ir/node.h"

namespace attune::codegen {

/// mask == (first <= kv && kv <= last && rest). A limit is an Int that does not depend on kv, null if there is none.
struct Limits {
  ir::Expr first, last, rest;
};
Limits limits_of(const ir::Expr& mask);

}  // namespace attune::codegen

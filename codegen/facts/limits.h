// codegen/facts/limits.h — the part of a mask that is a first and a last key per row
#pragma once

#include "ir/node.h"

namespace attune::codegen {

/// mask == (first <= kv && kv <= last && rest). A limit is an Int that does not depend on kv; null: no limit.
struct Limits {
  ir::Expr first, last, rest;
};
Limits limits_of(const ir::Expr& mask);

}  // namespace attune::codegen

// codegen/llvm/block.h — the blocks that a product is cut into
#pragma once

#include "codegen/llvm/kit.h"

namespace attune::codegen {

/// One unit.
llvm::Type* unit_type(const Kit& kit, Code& code);

/// Some rows of A, a panel of B, and the block of C they produce.
struct Block {
  Val a, b, c, keep;  ///< pointers to the first unit, float
  Val a_row, b_k, c_row, k;
  Val is_set;  ///< overwrite C without reading it; else scale it by keep, which may be ones
};

/// The body of a kernel that takes a Product: for each panel, for each group of `rows` rows (at most mr).
void each_block(const Kit& kit, Code& code, unsigned rows, const std::function<void(const Block&)>& body);

}  // namespace attune::codegen

// codegen/llvm/kit.h — the kernels of the kit: each defines its symbol in a module; the blocks that a product is cut
// into
#pragma once

#include <attune/tensor.h>

#include "codegen/cpu.h"
#include "codegen/llvm/module.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {

/// A kit under construction.
struct Kit {
  Module& module;
  Unit unit;
  DType type;  ///< the tensors' type
  Tiling tiling;

  Isa isa() const { return module.isa(); }
  unsigned width() const { return static_cast<unsigned>(tiling.width); }
  bool is_bf16() const { return unit == Unit::bf16; }
  /// Registers per row of a panel.
  unsigned vectors() const { return static_cast<unsigned>(tiling.nr / tiling.width); }
  /// A kernel takes a pointer to its struct.
  llvm::Function* kernel(const char* symbol) const;
};

void define_product(const Kit& kit, const char* symbol);
void define_guarded_product(const Kit& kit);
void define_load_rows(const Kit& kit);
void define_store_rows(const Kit& kit);
void define_row_dots(const Kit& kit);
void define_pack_columns(const Kit& kit);
void define_pack_rows(const Kit& kit);
void define_transpose(const Kit& kit);
/// `pairs`: q and k are bf16, and pairs of them are multiplied at once.
void define_dots(const Kit& kit, bool pairs);
void define_weigh(const Kit& kit);
/// The product on AMX tiles, tiles_begin and tiles_end.
void define_amx(const Kit& kit);

// ---- blocks of a product --------------------------------------------------------------------------------------------

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

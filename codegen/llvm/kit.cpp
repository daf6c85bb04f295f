// codegen/llvm/kit.cpp — the kit as one object: kernels that do not depend on the user's expressions
#include "codegen/llvm/kit.h"

#include <array>

#include "codegen/llvm.h"

namespace attune::codegen {

llvm::Function* Kit::kernel(const char* symbol) const {
  const std::array<llvm::Type*, 1> args{llvm::PointerType::get(module.context(), 0)};
  return module.define(symbol, llvm::Type::getVoidTy(module.context()), args);
}

std::string kit_object(Isa isa, Unit unit, DType type, Listing* listing) {
  Module module(isa, "kit");
  const Kit kit{module, unit, type, tiling(isa, unit)};
  if (isa == Isa::amx && unit == Unit::bf16) {
    define_amx(kit);
  } else {
    define_product(kit, kit_symbol::product);
    Kit half = kit;
    half.tiling.nr /= 2;
    define_product(half, kit_symbol::half_product);
  }
  define_guarded_product(kit);
  define_row_dots(kit);
  define_load_rows(kit);
  define_store_rows(kit);
  define_pack_columns(kit);
  define_pack_rows(kit);
  define_transpose(kit);
  define_dots(kit, false);
  if (has_bf16(isa) && type == DType::bf16) define_dots(kit, true);
  define_weigh(kit);
  return std::move(module).object(listing);
}

}  // namespace attune::codegen

// codegen/llvm/block.cpp — the blocks that a product is cut into
#include "codegen/llvm/block.h"

#include "codegen/llvm/args.h"

namespace attune::codegen {
namespace {

/// Factors that leave C unchanged.
Val ones(const Kit& kit, Code& code) {
  auto* type = llvm::ArrayType::get(code.f32(), static_cast<unsigned>(kit.tiling.mr));
  const std::vector<float> all(static_cast<std::size_t>(kit.tiling.mr), 1.0f);
  auto* global = new llvm::GlobalVariable(kit.module.llvm(), type, true, llvm::GlobalValue::InternalLinkage,
                                          llvm::ConstantDataArray::get(kit.module.context(), all));
  return {code, global};
}

/// The arguments.
struct Operands {
  Operands(const Kit& kit, Code& code, const Args<Product>& args)
      : a(args(&Product::a)), b(args(&Product::b)), c(args(&Product::c)), keep(args(&Product::keep)),
        a_row(args(&Product::a_row)), b_k(args(&Product::b_k)), b_panel(args(&Product::b_panel)),
        c_row(args(&Product::c_row)), groups(args(&Product::groups)), panels(args(&Product::panels)),
        k(args(&Product::k)), is_scaled(code, code.ir().CreateIsNotNull(keep.get())),
        is_set(!(is_scaled | (args(&Product::add) != 0))), kept(ones(kit, code)) {}

  /// The block of panel `panel` that starts at row `row`.
  Block block(const Kit& kit, Code& code, Val row, Val panel) const {
    llvm::Type* unit = unit_type(kit, code);
    return {code.at(a, unit, row * a_row),
            code.at(b, unit, panel * b_panel),
            code.at(c, code.f32(), row * c_row + panel * kit.tiling.nr),
            select(is_scaled, code.at(keep, code.f32(), row), kept),
            a_row,
            b_k,
            c_row,
            k,
            is_set};
  }

  Val a, b, c, keep, a_row, b_k, b_panel, c_row, groups, panels, k, is_scaled, is_set, kept;
};

}  // namespace

llvm::Type* unit_type(const Kit& kit, Code& code) { return kit.is_bf16() ? code.i32() : code.f32(); }

void each_block(const Kit& kit, Code& code, unsigned rows, const std::function<void(const Block&)>& body) {
  const Operands operands(kit, code, Args<Product>(code, code.arg(0)));
  code.loop(code.index(0), operands.panels, 1, [&](Val panel) {
    code.loop(code.index(0), operands.groups * kit.tiling.mr, rows,
              [&](Val row) { body(operands.block(kit, code, row, panel)); });
  });
}

}  // namespace attune::codegen

// codegen/llvm/pack.cpp — packs row-major matrices as operands, and transposes them
#include <array>

#include "codegen/llvm/args.h"
#include "codegen/llvm/element.h"
#include "codegen/llvm/kit.h"
#include "codegen/llvm/lanes.h"

namespace attune::codegen {
namespace {

/// fn(from, from_row, into, into_row, columns): transposes as many rows as a register has lanes, of units or of bf16;
/// `columns` is a multiple of 4. The whole kit shares one function, since LLVM compiles shuffles slowly.
llvm::Function* transpose_rows(const Kit& kit, llvm::Type* element) {
  const std::string name = "transpose_" + std::to_string(element->getScalarSizeInBits());
  if (llvm::Function* made = kit.module.llvm().getFunction(name)) return made;
  llvm::LLVMContext& context = kit.module.context();
  llvm::Type *pointer = llvm::PointerType::get(context, 0), *i64 = llvm::Type::getInt64Ty(context);
  const std::array<llvm::Type*, 5> types{pointer, i64, pointer, i64, i64};
  Code code(kit.module.define_local(name, llvm::Type::getVoidTy(context), types));
  const Val from = code.arg(0), from_row = code.arg(1), into = code.arg(2), into_row = code.arg(3);
  code.loop(code.index(0), code.arg(4), 4, [&](Val c) {
    std::vector<Val> rows;
    for (unsigned i = 0; i < kit.width(); ++i)
      rows.push_back(code.load(Code::vector(element, 4), code.at(from, element, from_row * i + c)));
    const auto columns = transposed(rows);
    for (unsigned i = 0; i < columns.size(); ++i) code.store(columns[i], code.at(into, element, into_row * (c + i)));
  });
  code.done();
  return code.function();
}

}  // namespace

void define_pack_columns(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::pack_columns));
  const Args<PackColumns> args(code, code.arg(0));
  const Val from = args(&PackColumns::from), into = args(&PackColumns::into), from_row = args(&PackColumns::from_row);
  const Val rows = args(&PackColumns::rows), k = args(&PackColumns::k), panel = args(&PackColumns::panel);
  const std::int64_t width = kit.tiling.width, nr = kit.tiling.nr;
  llvm::Type* unit = code.i32();
  llvm::Function* transpose = transpose_rows(kit, unit);
  const Val blocks = (rows + (nr - 1)) / nr * kit.vectors();
  code.loop(code.index(0), blocks, 1, [&](Val b) {
    const Val source = code.at(from, unit, b * width * from_row);
    const Val target = code.at(into, unit, b / kit.vectors() * panel + b % kit.vectors() * width);
    const Val valid = max(min(rows - b * width, code.index(width)), code.index(0));
    const Val whole = select(valid == width, k & code.index(-4), code.index(0));
    code.call(transpose, {source, from_row, target, code.index(nr), whole});
    code.loop(whole, k, 1, [&](Val c) {
      const Val line = code.at(target, unit, c * nr);
      code.loop(code.index(0), valid, 1, [&](Val r) {
        code.store(code.load(unit, code.at(source, unit, r * from_row + c)), code.at(line, unit, r));
      });
      code.loop(valid, code.index(width), 1, [&](Val r) { code.store(code.integer(0), code.at(line, unit, r)); });
    });
  });
  code.done();
}

void define_pack_rows(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::pack_rows));
  const Args<PackRows> args(code, code.arg(0));
  const Val from = args(&PackRows::from), into = args(&PackRows::into), from_row = args(&PackRows::from_row);
  const Val rows = args(&PackRows::rows), panel = args(&PackRows::panel);
  const std::int64_t nr = kit.tiling.nr, per = per_unit(kit.unit);
  llvm::Type* element = kit.is_bf16() ? code.i16() : code.i32();
  const auto register_at = [&](Val row, unsigned v) {
    return zero_extended(code.load(Code::vector(element, kit.width()), code.at(row, element, v * kit.width())));
  };
  const Val panels = args(&PackRows::columns) / nr, whole = rows / per;
  code.loop(code.index(0), panels, 1, [&](Val p) {
    const Val source = code.at(from, element, p * nr), target = code.at(into, code.i32(), p * panel);
    code.loop(code.index(0), whole, 1, [&](Val u) {
      const Val row = code.at(source, element, u * per * from_row);
      for (unsigned v = 0; v < kit.vectors(); ++v) {
        Val units = register_at(row, v);
        if (kit.is_bf16()) units = units | register_at(code.at(row, element, from_row), v) << 16;
        code.store(units, code.at(target, code.i32(), u * nr + v * kit.width()));
      }
    });
    if (kit.is_bf16())
      code.when(rows % per != 0, [&] {
        const Val row = code.at(source, element, (rows - 1) * from_row);
        for (unsigned v = 0; v < kit.vectors(); ++v)
          code.store(register_at(row, v), code.at(target, code.i32(), whole * nr + v * kit.width()));
      });
  });
  code.done();
}

void define_transpose(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::transpose));
  const Args<Transpose> args(code, code.arg(0));
  const Val from = args(&Transpose::from), into = args(&Transpose::into);
  llvm::Type* element = kit.is_bf16() ? code.i16() : code.i32();
  llvm::Function* transpose = transpose_rows(kit, element);
  const Val from_row = args(&Transpose::from_row), into_row = args(&Transpose::into_row);
  const Val columns = args(&Transpose::columns);
  code.loop(code.index(0), args(&Transpose::rows), kit.tiling.width, [&](Val r) {
    code.call(transpose,
              {code.at(from, element, r * from_row), from_row, code.at(into, element, r), into_row, columns});
  });
  code.done();
}

}  // namespace attune::codegen

// codegen/llvm/rows.cpp — copies rows between tensors of any strides and row-major scratch
#include <array>

#include "codegen/llvm/element.h"
#include "codegen/llvm/kit.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {
void define_load_rows(const Kit& kit) {
  const std::array<llvm::Type*, 1> types{llvm::PointerType::get(kit.module.context(), 0)};
  Code code(kit.module.define(kit_symbol::load_rows, llvm::Type::getInt8Ty(kit.module.context()), types));
  const Args<LoadRows> args(code, code.arg(0));
  const Val from = args(&LoadRows::from), into = args(&LoadRows::into), factor = args(&LoadRows::factor);
  const Val row = args(&LoadRows::row), column = args(&LoadRows::column), into_row = args(&LoadRows::into_row);
  const Val columns = args(&LoadRows::columns), padded = args(&LoadRows::padded);
  const NotFinite test(code, kit.is_bf16() ? DType::bf16 : DType::f32);
  llvm::Type* as = kit.is_bf16() ? code.i16() : code.f32();
  const unsigned lanes = kit.is_bf16() ? 2 * kit.width() : kit.width();

  const auto move = [&](Val source, Val target, unsigned n, Val worst) {
    const Val x = kit.is_bf16() ? code.load(Code::vector(as, n), source)
                                : load_f32(code, kit.isa(), kit.type, source, n) * factor;
    code.store(x, target);
    return Code::Carried{test.worse(worst, kit.is_bf16() ? x : as_int(x))};
  };
  const auto worst = code.loop(
      code.index(0), args(&LoadRows::rows), 1, {splat(test.none(), lanes), test.none()},
      [&](Val r, const Code::Carried& before) {
        const Val source = code.at(from, element_type(code, kit.type), r * row),
                  target = code.at(into, as, r * into_row);
        const auto wide = code.branch(
            column == 1,
            [&] {
              const Val whole = columns & code.index(-static_cast<std::int64_t>(lanes));
              Code::Carried after = code.loop(
                  code.index(0), whole, lanes, {before[0]}, [&](Val c, const Code::Carried& w) {
                    return move(code.at(source, element_type(code, kit.type), c), code.at(target, as, c), lanes, w[0]);
                  });
              after.push_back(whole);
              return after;
            },
            [&] {
              return Code::Carried{before[0], code.index(0)};
            });
        const auto narrow = code.loop(wide[1], columns, 1, {before[1]}, [&](Val c, const Code::Carried& w) {
          return move(code.at(source, element_type(code, kit.type), c * column), code.at(target, as, c), 1, w[0]);
        });
        each(code, columns, padded, lanes, [&](Val c, unsigned n) {
          code.store({code, llvm::Constant::getNullValue(Code::vector(as, n))}, code.at(target, as, c));
        });
        return Code::Carried{wide[0], narrow[0]};
      });
  const Val found = any(test.found(worst[0])) | test.found(worst[1]);
  code.ir().CreateRet(code.ir().CreateZExt(found.get(), code.i8()));
}

void define_store_rows(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::store_rows));
  const Args<StoreRows> args(code, code.arg(0));
  const Val from = args(&StoreRows::from), into = args(&StoreRows::into), factor = args(&StoreRows::factor);
  const Val from_row = args(&StoreRows::from_row), row = args(&StoreRows::row), column = args(&StoreRows::column);
  const Val columns = args(&StoreRows::columns), scale = args(&StoreRows::scale);
  const Val has_factor{code, code.ir().CreateIsNotNull(factor.get())};
  llvm::Type* element = element_type(code, kit.type);
  code.loop(code.index(0), args(&StoreRows::rows), 1, [&](Val r) {
    const Val times = code.branch(
        has_factor, [&] { return Code::Carried{scale * code.load(code.f32(), code.at(factor, code.f32(), r))}; },
        [&] { return Code::Carried{scale}; })[0];
    const Val source = code.at(from, code.f32(), r * from_row), target = code.at(into, element, r * row);
    const auto move = [&](Val c, Val to, unsigned lanes) {
      const Val x = code.load(Code::vector(code.f32(), lanes), code.at(source, code.f32(), c));
      store_f32(code, kit.isa(), kit.type, x * times, code.at(target, element, to));
    };
    code.branch(
        column == 1,
        [&] {
          each(code, code.index(0), columns, kit.width(), [&](Val c, unsigned lanes) { move(c, c, lanes); });
          return Code::Carried{};
        },
        [&] {
          code.loop(code.index(0), columns, 1, [&](Val c) { move(c, c * column, 1); });
          return Code::Carried{};
        });
  });
  code.done();
}

}  // namespace attune::codegen

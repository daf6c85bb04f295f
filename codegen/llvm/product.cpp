// codegen/llvm/product.cpp — products with a packed operand, blocked for registers; packs row-major matrices for them
#include <array>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/element.h"
#include "codegen/llvm/kit.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {
namespace {

// ---- blocks ---------------------------------------------------------------------------------------------------------

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

namespace {

// ---- products -------------------------------------------------------------------------------------------------------

/// Units of k per iteration.
constexpr int unroll = 4;

Val multiply_add(const Kit& kit, Val a, Val b, Val sum) {
  if (!kit.is_bf16()) return fma(a, b, sum);
  Code& code = sum.code();
  llvm::Type* pairs = Code::vector(code.bf16(), 2 * kit.width());
  return code.intrinsic(
      llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {},
      {sum, {code, code.ir().CreateBitCast(a.get(), pairs)}, {code, code.ir().CreateBitCast(b.get(), pairs)}});
}

/// C = sums, or C = keep C + sums.
void store(const Kit& kit, Code& code, const Block& block, const Code::Carried& sums) {
  const auto at = [&](std::size_t i) {
    const Val row = code.at(block.c, code.f32(), block.c_row * (i / kit.vectors()));
    return code.at(row, code.f32(), code.index(static_cast<std::int64_t>(i % kit.vectors() * kit.width())));
  };
  code.branch(
      block.is_set,
      [&] {
        for (std::size_t i = 0; i < sums.size(); ++i) code.store(sums[i], at(i));
        return Code::Carried{};
      },
      [&] {
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const auto row = static_cast<std::int64_t>(i / kit.vectors());
          const Val times = code.load(code.f32(), code.at(block.keep, code.f32(), row));
          code.store(fma(code.load(sums[i].type(), at(i)), times, sums[i]), at(i));
        }
        return Code::Carried{};
      });
}

Code::Carried zeros(const Kit& kit, Code& code, unsigned rows) {
  return Code::Carried(rows * kit.vectors(), splat(code.real(0), kit.width()));
}

/// The values that the loop over k carries: sums, a pointer into A per four rows, and one into B. x86 addresses four
/// rows from a pointer, a_row and 3 a_row; a pointer per row would not fit in its registers.
class Turn {
 public:
  Turn(const Kit& kit, Code& code, const Block& block) : kit_(kit), code_(code), block_(block) {}

  Code::Carried begin() const {
    Code::Carried carried = zeros(kit_, code_, rows());
    for (unsigned r = 0; r < rows(); r += 4) carried.push_back(code_.at(block_.a, unit(), block_.a_row * r));
    carried.push_back(block_.b);
    return carried;
  }

  /// Advances k by `count` units.
  Code::Carried step(Code::Carried carried, unsigned count) const {
    for (unsigned i = 0; i < count; ++i) add(carried, i);
    for (std::size_t i = sums(); i + 1 < carried.size(); ++i) carried[i] = code_.at(carried[i], unit(), count);
    return carried;
  }

  Code::Carried end(Code::Carried carried) const {
    carried.resize(sums());
    return carried;
  }

 private:
  llvm::Type* unit() const { return unit_type(kit_, code_); }
  unsigned rows() const { return static_cast<unsigned>(kit_.tiling.mr); }
  std::size_t sums() const { return rows() * kit_.vectors(); }

  void add(Code::Carried& carried, unsigned k) const {
    std::vector<Val> columns;
    for (unsigned v = 0; v < kit_.vectors(); ++v)
      columns.push_back(
          code_.load(Code::vector(unit(), kit_.width()), code_.at(carried.back(), unit(), v * kit_.width())));
    for (unsigned r = 0; r < rows(); ++r) {
      const Val row = code_.at(carried[sums() + r / 4], unit(), block_.a_row * (r % 4));
      const Val a = splat(code_.load(unit(), code_.at(row, unit(), k)), kit_.width());
      for (unsigned v = 0; v < kit_.vectors(); ++v) {
        Val& sum = carried[r * kit_.vectors() + v];
        sum = multiply_add(kit_, a, columns[v], sum);
      }
    }
    carried.back() = code_.at(carried.back(), unit(), block_.b_k);
  }

  const Kit& kit_;
  Code& code_;
  const Block& block_;
};

/// sum += a b, except where a is 0; if units are pairs, each half separately.
Code::Carried guarded_step(const Kit& kit, Code& code, Val a, std::vector<Val> columns, Code::Carried sums) {
  const auto part = [&](Val scalar, const std::function<Val(Val)>& of_b) {
    sums = code.branch(
        scalar != 0,
        [&] {
          Code::Carried next;
          for (unsigned v = 0; v < sums.size(); ++v) next.push_back(fma(scalar, of_b(columns[v]), sums[v]));
          return next;
        },
        [&] { return sums; });
  };
  if (kit.is_bf16()) {
    const auto low = [](Val x) { return as_float(x << 16); };
    const auto high = [](Val x) { return as_float(x & x.code().integer(-0x10000)); };
    part(low(a), low);
    part(high(a), high);
  } else {
    part(a, [](Val x) { return x; });
  }
  return sums;
}

}  // namespace

void define_product(const Kit& kit, const char* symbol) {
  Code code(kit.kernel(symbol));
  each_block(kit, code, static_cast<unsigned>(kit.tiling.mr), [&](const Block& block) {
    const Turn turn(kit, code, block);
    const Val whole = block.k & code.index(-unroll);
    const auto main = code.loop(code.index(0), whole, unroll, turn.begin(),
                                [&](Val, const Code::Carried& carried) { return turn.step(carried, unroll); });
    const auto rest = code.loop(whole, block.k, 1, main,
                                [&](Val, const Code::Carried& carried) { return turn.step(carried, 1); });
    store(kit, code, block, turn.end(rest));
  });
  code.done();
}

void define_guarded_product(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::guarded_product));
  llvm::Type* unit = unit_type(kit, code);
  each_block(kit, code, 1, [&](const Block& block) {
    const Code::Carried start = zeros(kit, code, 1);
    store(kit, code, block, code.loop(code.index(0), block.k, 1, start, [&](Val k, const Code::Carried& sums) {
      std::vector<Val> columns;
      for (unsigned v = 0; v < kit.vectors(); ++v)
        columns.push_back(
            code.load(Code::vector(unit, kit.width()), code.at(block.b, unit, k * block.b_k + v * kit.width())));
      return guarded_step(kit, code, code.load(unit, code.at(block.a, unit, k)), columns, sums);
    }));
  });
  code.done();
}

void define_row_dots(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::row_dots));
  const Args<RowDots> args(code, code.arg(0));
  const Val a = args(&RowDots::a), b = args(&RowDots::b), row = args(&RowDots::row), into = args(&RowDots::into);
  const Val rows = args(&RowDots::rows), columns = args(&RowDots::columns);
  const auto sum_rows = [&](Val first, unsigned count) {
    const Val from = first * row;
    const auto sums = code.loop(code.index(0), columns, 1, Code::Carried(count, code.real(0)),
                                [&](Val c, const Code::Carried& before) {
                                  Code::Carried next;
                                  for (unsigned i = 0; i < count; ++i) {
                                    const auto value = [&](Val matrix) {
                                      return code.load(code.f32(), code.at(matrix, code.f32(), from + row * i + c));
                                    };
                                    next.push_back(fma(value(a), value(b), before[i]));
                                  }
                                  return next;
                                });
    for (unsigned i = 0; i < count; ++i) code.store(sums[i], code.at(into, code.f32(), first + i));
  };
  constexpr unsigned at_once = 4;  // a multiply-add takes four cycles
  const Val whole = rows & code.index(-std::int64_t{at_once});
  code.loop(code.index(0), whole, at_once, [&](Val r) { sum_rows(r, at_once); });
  code.loop(whole, rows, 1, [&](Val r) { sum_rows(r, 1); });
  code.done();
}

namespace {

// ---- packing --------------------------------------------------------------------------------------------------------

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
      const Val column = code.at(target, unit, c * nr);
      code.loop(code.index(0), valid, 1, [&](Val r) {
        code.store(code.load(unit, code.at(source, unit, r * from_row + c)), code.at(column, unit, r));
      });
      code.loop(valid, code.index(width), 1, [&](Val r) { code.store(code.integer(0), code.at(column, unit, r)); });
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

// codegen/llvm/product.cpp — products with a packed operand, in blocks that stay in registers
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/args.h"
#include "codegen/llvm/block.h"
#include "codegen/llvm/kit.h"

namespace attune::codegen {
namespace {

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

}  // namespace attune::codegen

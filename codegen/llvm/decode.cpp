// codegen/llvm/decode.cpp — few queries against keys and values as they lie: each of these is read once
#include <array>

#include "codegen/llvm/args.h"
#include "codegen/llvm/element.h"
#include "codegen/llvm/kit.h"
#include "codegen/llvm/lanes.h"

namespace attune::codegen {
namespace {

/// Keys that stay in the L1 cache while all rows pass over them.
constexpr int keys_at_once = 16;
constexpr int keys_ahead = 16;
constexpr int values_ahead = 8;
/// Values that are weighed before a sum goes back to memory.
constexpr int values_at_once = 8;

/// What a call of a function of some rows against a few keys is given.
struct FewKeys {
  Val q, q_row, k, k_row, count, d, s, s_row;

  static FewKeys of(Code& code) {
    return {code.arg(0), code.arg(1), code.arg(2), code.arg(3), code.arg(4), code.arg(5), code.arg(6), code.arg(7)};
  }
  static std::array<llvm::Type*, 8> types(Code& code) {
    llvm::Type *p = code.pointer(), *i = code.i64();
    return {p, i, p, i, i, i, p, i};
  }
};

/// sums[r][key] += q[r] k[key] for columns from c on; `load` reads a register of them.
using LoadAt = std::function<Val(DType type, Val pointer)>;
Code::Carried dots_step(const Kit& kit, Code& code, const std::vector<Val>& rows, const std::vector<Val>& keys, Val c,
                        const LoadAt& load, Val ahead, Code::Carried sums) {
  std::vector<Val> of_q;
  for (const Val& row : rows) of_q.push_back(load(DType::f32, code.at(row, code.f32(), c)));
  for (std::size_t j = 0; j < keys.size(); ++j) {
    const Val at = code.at(keys[j], element_type(code, kit.type), c);
    code.prefetch(code.at(at, code.i8(), ahead));
    const Val key = load(kit.type, at);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      Val& sum = sums[r * keys.size() + j];
      sum = fma(of_q[r], key, sum);
    }
  }
  return sums;
}

/// Writes lanes [r][j] of `lanes`, for as many keys as there are; `buffer` holds them in between.
void store_scores(const Kit& kit, Code& code, const FewKeys& of, Val lanes, unsigned rows, Val first_key, Val buffer) {
  const unsigned keys = kit.width() / rows;
  const auto target = [&](unsigned r, Val key) { return code.at(of.s, code.f32(), of.s_row * r + first_key + key); };
  code.branch(
      first_key + keys <= of.count,
      [&] {
        for (unsigned r = 0; r < rows; ++r) {
          std::vector<int> picked;
          for (unsigned j = 0; j < keys; ++j) picked.push_back(static_cast<int>(r * keys + j));
          code.store(keys == 1 ? lane(lanes, r) : shuffle(lanes, picked), target(r, code.index(0)));
        }
        return Code::Carried{};
      },
      [&] {
        code.store(lanes, buffer);
        code.loop(code.index(0), of.count - first_key, 1, [&](Val j) {
          for (unsigned r = 0; r < rows; ++r)
            code.store(code.load(code.f32(), code.at(buffer, code.f32(), j + r * keys)), target(r, j));
        });
        return Code::Carried{};
      });
}

/// `rows` queries, a register of sums: as many keys as fill it.
llvm::Function* dots_of(const Kit& kit, Code& caller, unsigned rows) {
  Code code(kit.module.define_local("dots_" + std::to_string(rows), llvm::Type::getVoidTy(kit.module.context()),
                                    FewKeys::types(caller)));
  const FewKeys of = FewKeys::of(code);
  const unsigned width = kit.width(), keys = width / rows;
  const Val buffer{code, code.ir().CreateAlloca(Code::vector(code.f32(), width))};
  std::vector<Val> q;
  for (unsigned r = 0; r < rows; ++r) q.push_back(code.at(of.q, code.f32(), of.q_row * r));
  const Val whole = of.d & code.index(-kit.tiling.width);
  const Val ahead = of.k_row * (keys_ahead * static_cast<std::int64_t>(size_of(kit.type)));
  code.loop(code.index(0), of.count, keys, [&](Val first) {
    std::vector<Val> k;  // beyond the last: the last again, which is not stored
    for (unsigned j = 0; j < keys; ++j)
      k.push_back(code.at(of.k, element_type(code, kit.type), min(first + j, of.count - 1) * of.k_row));
    Code::Carried sums(rows * keys, splat(code.real(0), width));
    const auto step = [&](Val c, const Code::Carried& before, const LoadAt& load) {
      return dots_step(kit, code, q, k, c, load, ahead, before);
    };
    const LoadAt all = [&](DType type, Val at) { return load_f32(code, kit.isa(), type, at, width); };
    const auto some = [&](Val c) -> LoadAt {
      return [&, c](DType type, Val at) { return load_some_f32(code, kit.isa(), type, at, of.d - c, width); };
    };
    if (has_masks(kit.isa())) {
      sums = code.loop(code.index(0), of.d, width, sums,
                       [&](Val c, const Code::Carried& before) { return step(c, before, some(c)); });
    } else {
      sums = code.loop(code.index(0), whole, width, sums,
                       [&](Val c, const Code::Carried& before) { return step(c, before, all); });
      sums = code.branch(
          whole < of.d, [&] { return step(whole, sums, some(whole)); }, [&] { return sums; });
    }
    store_scores(kit, code, of, sums_of_lanes(sums), rows, first, buffer);
  });
  code.done();
  return code.function();
}

/// Values as they lie, their weights, and the sums they are added to.
struct Weights {
  Val p, p_row, rows, v, v_row, o, o_row;

  Weights at(const Kit& kit, Code& code, Val value, Val column) const {
    return {code.at(p, code.f32(), value),
            p_row,
            rows,
            code.at(v, element_type(code, kit.type), value * v_row + column),
            v_row,
            code.at(o, code.f32(), column),
            o_row};
  }
};

/// fn(p, p_row, rows, v, v_row, o, o_row, count, columns): one value after the other, and none where its weight is 0.
llvm::Function* weigh_guarded(const Kit& kit, Code& caller) {
  llvm::Type *pointer = caller.pointer(), *i64 = caller.i64();
  const std::array<llvm::Type*, 9> types{pointer, i64, i64, pointer, i64, pointer, i64, i64, i64};
  Code code(kit.module.define_local("weigh_guarded", llvm::Type::getVoidTy(kit.module.context()), types));
  const Weights all{code.arg(0), code.arg(1), code.arg(2), code.arg(3), code.arg(4), code.arg(5), code.arg(6)};
  code.loop(code.index(0), code.arg(7), 1, [&](Val j) {
    const Weights of = all.at(kit, code, j, code.index(0));
    code.loop(code.index(0), of.rows, 1, [&](Val r) {
      const Val p = code.load(code.f32(), code.at(of.p, code.f32(), r * of.p_row));
      code.when(p != 0, [&] {
        each(code, code.index(0), code.arg(8), kit.width(), [&](Val c, unsigned lanes) {
          const Val sum = code.at(of.o, code.f32(), r * of.o_row + c);
          const Val value = load_f32(code, kit.isa(), kit.type, code.at(of.v, element_type(code, kit.type), c), lanes);
          code.store(fma(value, p, code.load(value.type(), sum)), sum);
        });
      });
    });
  });
  code.done();
  return code.function();
}

/// A register of columns of `values_at_once` values, for all rows. Says whether it added them: not if one is not
/// finite.
Val weigh_finite(const Kit& kit, Code& code, const Weights& of) {
  std::vector<Val> values;
  Val doubt = splat(code.real(0), kit.width());  // 0 * v is NaN where v is not finite, and then so is the sum
  for (unsigned j = 0; j < values_at_once; ++j) {
    const Val at = code.at(of.v, element_type(code, kit.type), of.v_row * j);
    code.prefetch(code.at(at, element_type(code, kit.type), of.v_row * values_ahead));
    values.push_back(load_f32(code, kit.isa(), kit.type, at, kit.width()));
    doubt = fma(values.back(), like(values.back(), 0.0), doubt);
  }
  const Val finite = !any(is_nan(doubt));
  code.when(finite, [&] {
    code.loop(code.index(0), of.rows, 1, [&](Val r) {
      const Val at = code.at(of.o, code.f32(), r * of.o_row), p = code.at(of.p, code.f32(), r * of.p_row);
      Val sum = code.load(doubt.type(), at);
      for (unsigned j = 0; j < values_at_once; ++j)
        sum = fma(values[j], code.load(code.f32(), code.at(p, code.f32(), j)), sum);
      code.store(sum, at);
    });
  });
  return finite;
}

}  // namespace

void define_dots(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::dots));
  const Args<Dots> args(code, code.arg(0));
  const Val q = args(&Dots::q), k = args(&Dots::k), s = args(&Dots::s), q_row = args(&Dots::q_row);
  const Val k_row = args(&Dots::k_row), s_row = args(&Dots::s_row), rows = args(&Dots::rows);
  const Val count = args(&Dots::count), d = args(&Dots::d);
  llvm::Function *four_rows = dots_of(kit, code, 4), *one_row = dots_of(kit, code, 1);
  code.loop(code.index(0), count, keys_at_once, [&](Val first) {
    const auto some = [&](llvm::Function* function, Val row) {
      code.call(function,
                {code.at(q, code.f32(), row * q_row), q_row, code.at(k, element_type(code, kit.type), first * k_row),
                 k_row, min(count - first, code.index(keys_at_once)), d, code.at(s, code.f32(), row * s_row + first),
                 s_row});
    };
    const Val fours = rows & code.index(-4);
    code.loop(code.index(0), fours, 4, [&](Val row) { some(four_rows, row); });
    code.loop(fours, rows, 1, [&](Val row) { some(one_row, row); });
  });
  code.done();
}

void define_weigh(const Kit& kit) {
  Code code(kit.kernel(kit_symbol::weigh));
  const Args<Weigh> args(code, code.arg(0));
  const Val p = args(&Weigh::p), v = args(&Weigh::v), v_row = args(&Weigh::v_row), keep = args(&Weigh::keep);
  const Val o = args(&Weigh::o), o_row = args(&Weigh::o_row), p_row = args(&Weigh::p_row), rows = args(&Weigh::rows);
  const Val count = args(&Weigh::count), dv = args(&Weigh::dv);
  code.loop(code.index(0), rows, 1, [&](Val r) {
    const Val times = code.load(code.f32(), code.at(keep, code.f32(), r));
    each(code, code.index(0), dv, kit.width(), [&](Val c, unsigned lanes) {
      const Val at = code.at(o, code.f32(), r * o_row + c);
      code.store(code.load(Code::vector(code.f32(), lanes), at) * times, at);
    });
  });
  llvm::Function* function = weigh_guarded(kit, code);
  const Weights all{p, p_row, rows, v, v_row, o, o_row};
  const auto guarded = [&](Val first, Val values, Val column, Val columns) {
    const Weights of = all.at(kit, code, first, column);
    code.call(function, {of.p, p_row, rows, of.v, v_row, of.o, o_row, values, columns});
  };
  const Val whole = count & code.index(-values_at_once), wide = dv & code.index(-kit.tiling.width);
  const Val many = code.index(values_at_once), none = code.index(0);
  code.loop(none, whole, values_at_once, [&](Val j) {
    code.loop(none, wide, kit.tiling.width, [&](Val c) {
      const Val done = weigh_finite(kit, code, all.at(kit, code, j, c));
      code.when(!done, [&] { guarded(j, many, c, code.index(kit.tiling.width)); });
    });
    code.when(wide < dv, [&] { guarded(j, many, wide, dv - wide); });
  });
  guarded(whole, count - whole, none, dv);
  code.done();
}

}  // namespace attune::codegen

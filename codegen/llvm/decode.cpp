// codegen/llvm/decode.cpp — decode: few queries against unpacked keys and values, each read once
#include <algorithm>
#include <array>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/element.h"
#include "codegen/llvm/kit.h"
#include "codegen/llvm/vec.h"

namespace attune::codegen {
namespace {

/// Keys that stay in the L1 cache while all rows pass over them.
constexpr int keys_at_once = 16;
/// Values added to a sum before it goes back to memory.
constexpr int values_at_once = 8;

/// How far ahead of its use memory is fetched, in bytes. A core that reads 28 GB/s at a latency of 150 ns has 4 kB in
/// flight. No processor's own prefetcher looks past the next page.
constexpr int bytes_ahead = 8192;
constexpr int line = 64;

/// Rows of memory that are read in order, and the address that is read after them.
struct Rows {
  llvm::Type* element;
  Val data, row, count, next;

  /// Row `i`; past the last row, the address that is read next.
  Val at(Code& code, Val i) const {
    const Val after = code.at(next, element, (i - count) * row);
    return select(i < count, code.at(data, element, i * row), after);
  }
};

/// How many rows of `columns` take `bytes_ahead` bytes, rounded up to a multiple of `values_at_once`.
Val rows_ahead(const Kit& kit, Code& code, Val columns) {
  const auto bytes = columns * static_cast<std::int64_t>(size_of(kit.type));
  const Val rows = (max(bytes, code.index(1)) + (bytes_ahead - 1)) / max(bytes, code.index(1));
  return (rows + (values_at_once - 1)) & code.index(-values_at_once);
}

/// Fetches a line into the second-level cache: the first one can have only a few lines in flight.
void fetch(Code& code, Val at) {
  constexpr int read = 0, second = 2, data = 1;
  code.intrinsic(llvm::Intrinsic::prefetch, {code.pointer()},
                 {at, code.integer(read), code.integer(second), code.integer(data)});
}

/// The arguments of a function that multiplies some rows by a few keys.
struct FewKeys {
  Val q, q_row, k, k_row, count, d, s, s_row, scale;
  Val left, next, ahead;  ///< keys from k on, the address read after them, and rows to fetch ahead

  static FewKeys of(Code& code) {
    return {code.arg(0), code.arg(1), code.arg(2), code.arg(3), code.arg(4),  code.arg(5),
            code.arg(6), code.arg(7), code.arg(8), code.arg(9), code.arg(10), code.arg(11)};
  }
  static std::array<llvm::Type*, 12> types(Code& code) {
    llvm::Type *p = code.pointer(), *i = code.i64();
    return {p, i, p, i, i, i, p, i, code.f32(), i, p, i};
  }
};

/// fn(sums, out): lane i of the register at `out` is the sum of the lanes of register i of `sums`. The whole kit shares
/// one function, because LLVM compiles shuffles slowly.
llvm::Function* add_up(const Kit& kit) {
  const char* name = "add_up";
  if (llvm::Function* made = kit.module.llvm().getFunction(name)) return made;
  llvm::Type* pointer = llvm::PointerType::get(kit.module.context(), 0);
  const std::array<llvm::Type*, 2> types{pointer, pointer};
  Code code(kit.module.define_local(name, llvm::Type::getVoidTy(kit.module.context()), types));
  llvm::Type* floats = Code::vector(code.f32(), kit.width());
  std::vector<Val> sums;
  for (unsigned i = 0; i < kit.width(); ++i) sums.push_back(code.load(floats, code.at(code.arg(0), floats, i)));
  code.store(sums_of_lanes(sums), code.arg(1));
  code.done();
  return code.function();
}

/// The way in which lanes of q and k are multiplied.
struct Lanes {
  const Kit& kit;
  bool pairs;  ///< both are bf16, and a lane takes two neighbours; else both are f32

  llvm::Type* q(Code& code) const { return pairs ? code.bf16() : code.f32(); }
  std::int64_t columns() const { return pairs ? 2 * kit.tiling.width : kit.tiling.width; }
  Val load_q(Code& code, Val at) const { return pairs ? load_pairs(code, at) : load(code, DType::f32, at); }
  Val load_k(Code& code, Val at) const { return pairs ? load_pairs(code, at) : load(code, kit.type, at); }
  Val multiply_add(Code& code, Val q, Val k, Val sum) const {
    return pairs ? code.intrinsic(llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512, {}, {sum, q, k}) : fma(q, k, sum);
  }

 private:
  Val load(Code& code, DType type, Val at) const { return load_f32(code, kit.isa(), type, at, kit.width()); }
  Val load_pairs(Code& code, Val at) const { return code.load(Code::vector(code.bf16(), 2 * kit.width()), at); }
};

/// q[r] . k for `keys` neighbours from `key` on, as partial sums per lane, which the caller adds up: [key][row].
Code::Carried dots_of_keys(const Lanes& lanes, Code& code, const FewKeys& of, unsigned rows, Val key,
                           std::span<const Val> ahead) {
  const Kit& kit = lanes.kit;
  const auto keys = static_cast<unsigned>(ahead.size());
  const Val whole = of.d & code.index(-lanes.columns());
  // One row is read in order, which the processor predicts; with many products per line, memory is not the bottleneck.
  const bool fetches = rows > 1 && rows * line <= 16 * lanes.columns() * static_cast<std::int64_t>(size_of(kit.type));
  llvm::Type* const element = element_type(code, kit.type);
  const auto row = [&](unsigned r, Val c) {
    return code.at(code.at(of.q, lanes.q(code), of.q_row * r), lanes.q(code), c);
  };
  const auto column = [&](unsigned i, Val c) { return code.at(key, element, of.k_row * i + c); };
  const Code::Carried zeros(std::size_t{rows} * keys, splat(code.real(0), kit.width()));
  const auto sums = code.loop(code.index(0), whole, lanes.columns(), zeros, [&](Val c, Code::Carried sum) {
    std::vector<Val> k;
    for (unsigned i = 0; i < keys; ++i) {
      k.push_back(lanes.load_k(code, column(i, c)));
      if (fetches) fetch(code, code.at(ahead[i], element, c));
    }
    for (unsigned r = 0; r < rows; ++r) {
      const Val q = lanes.load_q(code, row(r, c));
      for (unsigned i = 0; i < keys; ++i) sum[i * rows + r] = lanes.multiply_add(code, q, k[i], sum[i * rows + r]);
    }
    return sum;
  });
  if (lanes.pairs) return sums;
  return code.branch(
      whole < of.d,
      [&] {
        Code::Carried sum = sums;
        const auto load = [&](DType type, Val at) {
          return load_some_f32(code, kit.isa(), type, at, of.d - whole, kit.width());
        };
        for (unsigned i = 0; i < keys; ++i) {
          const Val k = load(kit.type, column(i, whole));
          for (unsigned r = 0; r < rows; ++r)
            sum[i * rows + r] = fma(load(DType::f32, row(r, whole)), k, sum[i * rows + r]);
        }
        return sum;
      },
      [&] { return sums; });
}

/// `rows` queries, one key after the other, because memory is fastest when read in order: reading 16 keys in parallel
/// reached half the bandwidth. Several rows take two keys at once, which halves their loads of q.
llvm::Function* dots_of(const Lanes& lanes, Code& caller, unsigned rows) {
  const Kit& kit = lanes.kit;
  llvm::Function* function = add_up(kit);
  Code code(kit.module.define_local((lanes.pairs ? "dots_of_pairs_" : "dots_") + std::to_string(rows),
                                    llvm::Type::getVoidTy(kit.module.context()), FewKeys::types(caller)));
  const FewKeys of = FewKeys::of(code);
  const unsigned keys = kit.width() / rows;
  llvm::Type* floats = Code::vector(code.f32(), kit.width());
  const Val sums{code, code.ir().CreateAlloca(llvm::ArrayType::get(floats, kit.width()))};  // [row][key]
  const Val scores{code, code.ir().CreateAlloca(floats)};
  const Rows rows_of_keys{element_type(code, kit.type), of.k, of.k_row, of.left, of.next};
  code.loop(code.index(0), of.count, keys, [&](Val first) {
    const Val some = min(of.count - first, code.index(keys));
    const auto beside = [&](Val j, unsigned count) {
      std::vector<Val> ahead;
      for (unsigned i = 0; i < count; ++i) ahead.push_back(rows_of_keys.at(code, first + j + of.ahead + i));
      const Val key = code.at(of.k, element_type(code, kit.type), (first + j) * of.k_row);
      const auto of_keys = dots_of_keys(lanes, code, of, rows, key, ahead);
      for (unsigned i = 0; i < count; ++i)
        for (unsigned r = 0; r < rows; ++r) code.store(of_keys[i * rows + r], code.at(sums, floats, j + i + r * keys));
    };
    const bool pairs = rows > 1 && keys % 2 == 0;
    const Val paired = pairs ? some & code.index(-2) : code.index(0);
    if (pairs) code.loop(code.index(0), paired, 2, [&](Val j) { beside(j, 2); });
    code.loop(paired, some, 1, [&](Val j) { beside(j, 1); });
    code.call(function, {sums, scores});
    code.loop(code.index(0), code.index(rows), 1, [&](Val r) {
      each(code, code.index(0), some, keys, [&](Val j, unsigned count) {
        const Val score = code.load(Code::vector(code.f32(), count), code.at(scores, code.f32(), r * keys + j));
        code.store(score * of.scale, code.at(of.s, code.f32(), r * of.s_row + first + j));
      });
    });
  });
  code.done();
  return code.function();
}

/// Unpacked values, their weights, and the sums to add to.
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

/// fn(p, p_row, rows, v, v_row, o, o_row, count, columns): adds one value after the other, skipping those of weight 0.
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

/// True if `columns` (whole registers) of `values_at_once` values are finite. Reads them in memory order.
Val all_finite(const Kit& kit, Code& code, const Weights& of, Val columns) {
  const NotFinite test(code, kit.type);
  const Val none = splat(test.none(), kit.width());
  const auto worst = code.loop(
      code.index(0), code.index(values_at_once), 1, {none}, [&](Val j, const Code::Carried& w) {
        const Val row = code.at(of.v, element_type(code, kit.type), j * of.v_row);
        return code.loop(code.index(0), columns, kit.width(), w, [&](Val c, const Code::Carried& before) {
          const Val bits = code.load(none.type(), code.at(row, element_type(code, kit.type), c));
          return Code::Carried{test.worse(before[0], bits)};
        });
      });
  return !any(test.found(worst[0]));
}

/// True if no weight of `values_at_once` values is 0. It then does not matter which values are finite.
Val none_skipped(Code& code, const Weights& of) {
  llvm::Type* weights = Code::vector(code.i32(), values_at_once);
  const Val magnitude = splat(code.integer(0x7fffffff), values_at_once);
  const auto least = code.loop(code.index(0), of.rows, 1, {magnitude}, [&](Val r, const Code::Carried& before) {
    const Val p = code.load(weights, code.at(of.p, code.f32(), r * of.p_row));
    return Code::Carried{min(p & magnitude, before[0])};
  });
  return !any(least[0] == 0);
}

/// Adds a register of columns of `values_at_once` values for all rows. Values of weight 0 must be finite.
void weigh_finite(const Kit& kit, Code& code, const Weights& of) {
  std::vector<Val> values;
  for (unsigned j = 0; j < values_at_once; ++j) {
    const Val at = code.at(of.v, element_type(code, kit.type), of.v_row * j);
    values.push_back(load_f32(code, kit.isa(), kit.type, at, kit.width()));
  }
  code.loop(code.index(0), of.rows, 1, [&](Val r) {
    const Val at = code.at(of.o, code.f32(), r * of.o_row), p = code.at(of.p, code.f32(), r * of.p_row);
    Val sum = code.load(values[0].type(), at);
    for (unsigned j = 0; j < values_at_once; ++j)
      sum = fma(values[j], code.load(code.f32(), code.at(p, code.f32(), j)), sum);
    code.store(sum, at);
  });
}

/// Fetches some lines of values, enough that all of `values_at_once` are fetched while their columns are processed.
/// `from`: a row and a byte in it; returns those for the next columns.
Code::Carried fetch_lines(const Kit& kit, Code& code, const Weights& of, Val columns, const Code::Carried& from) {
  const auto size = static_cast<std::int64_t>(size_of(kit.type));
  const std::int64_t lines = std::max<std::int64_t>(values_at_once * kit.tiling.width * size / line, 1);
  Val row = from[0], bytes = from[1];
  for (std::int64_t i = 0; i < lines; ++i) {
    fetch(code, code.at(row, code.i8(), bytes));
    bytes = bytes + line;
    const Val ends = bytes >= columns * size;
    row = select(ends, code.at(row, element_type(code, kit.type), of.v_row), row);
    bytes = select(ends, 0, bytes);
  }
  return {row, bytes};
}

}  // namespace

void define_dots(const Kit& kit, bool pairs) {
  Code code(kit.kernel(pairs ? kit_symbol::dots_of_pairs : kit_symbol::dots));
  const Lanes lanes{kit, pairs};
  const Args<Dots> args(code, code.arg(0));
  const Val q = args(&Dots::q), k = args(&Dots::k), s = args(&Dots::s), q_row = args(&Dots::q_row);
  const Val k_row = args(&Dots::k_row), s_row = args(&Dots::s_row), rows = args(&Dots::rows);
  const Val count = args(&Dots::count), d = args(&Dots::d), scale = args(&Dots::scale), next = args(&Dots::next);
  const Val ahead = rows_ahead(kit, code, d);
  // As many rows at once as remain; a register of 8 lanes holds the sums of 8 rows.
  struct Dotted {
    std::int64_t rows;
    llvm::Function* function;
  };
  std::vector<Dotted> some_rows;
  for (const unsigned n : {8u, 4u, 1u})
    if (n <= kit.width()) some_rows.push_back({n, dots_of(lanes, code, n)});
  code.loop(code.index(0), count, keys_at_once, [&](Val first) {
    const auto some = [&](llvm::Function* function, Val row) {
      code.call(function,
                {code.at(q, lanes.q(code), row * q_row), q_row, code.at(k, element_type(code, kit.type), first * k_row),
                 k_row, min(count - first, code.index(keys_at_once)), d, code.at(s, code.f32(), row * s_row + first),
                 s_row, scale, count - first, next, ahead});
    };
    Val row = code.index(0);
    for (const auto& [n, function] : some_rows) {
      const Val end = rows & code.index(-n);
      code.loop(row, end, n, [&, f = function](Val r) { some(f, r); });
      row = end;
    }
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
  const Rows values{element_type(code, kit.type), v, v_row, whole, args(&Weigh::next)};
  const Val ahead = rows_ahead(kit, code, dv);
  // With few rows, reading the values in order first gains more than it costs.
  const auto all_weigh = [&](const Weights& of) {
    return code.branch(
        rows >= 4, [&] { return Code::Carried{none_skipped(code, of)}; },
        [&] { return Code::Carried{code.boolean(false)}; })[0];
  };
  code.loop(none, whole, values_at_once, [&](Val j) {
    const Weights of = all.at(kit, code, j, none);
    const auto yes = [&] { return Code::Carried{code.boolean(true)}; };
    const Val simple = code.branch(all_weigh(of), yes,
                                   [&] { return Code::Carried{all_finite(kit, code, of, wide)}; })[0];
    const Val done = select(simple, wide, none);
    // Meanwhile fetches as many further values, in memory order: some lines for each register of columns.
    code.loop(none, done, kit.tiling.width, {values.at(code, j + ahead), none},
              [&](Val c, const Code::Carried& fetched) {
                const auto next = fetch_lines(kit, code, all, dv, fetched);
                weigh_finite(kit, code, all.at(kit, code, j, c));
                return next;
              });
    code.when(done < dv, [&] { guarded(j, many, done, dv - done); });
  });
  guarded(whole, count - whole, none, dv);
  code.done();
}

}  // namespace attune::codegen

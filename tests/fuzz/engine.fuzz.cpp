// tests/fuzz/engine.fuzz.cpp — random mods through whole engines at random small shapes, against the oracle
#include <array>
#include <functional>
#include <optional>
#include <sstream>

#include <attune/error.h>

#include "compiler/mod.h"
#include "runtime/tensor.h"
#include "tests/catch.h"
#include "tests/fuzz/random_expr.h"
#include "tests/numerics/agree.h"
#include "tests/storable.h"

namespace attune {
namespace {

using ir::Expr, ir::Random, ir::Type;
using tests::Layout, tests::Shape, tests::Subject;

/// What a function may be off by in an engine, and is not in dense attention, which calls the C library: f32 ulps.
constexpr double ulps = 4;

bool is_inexact(ir::Op op) {
  using enum ir::Op;
  constexpr std::array functions{Rsqrt, Exp, Exp2, Log, Log2, Pow, Sin, Cos, Tan, Tanh, Sigmoid, Erf};
  return std::find(functions.begin(), functions.end(), op) != functions.end();
}

/// A random mod, its data, and a call.
class Case {
 public:
  explicit Case(std::uint64_t seed) : random_(seed ^ 0xe26) {
    grammar_ = ir::Grammar::ordinary();
    hostile_ = grammar_.hostile = seed % 4 == 3;
    grammar_.denormals = false;
    grammar_.max_nodes = random_.chance(0.2) ? 50 : 14;
    data();
    traced_.mod.score = score(seed);
    traced_.mod.mask = random_.chance(0.5) ? ir::boolean(true) : expr(seed ^ 0x3a5c, Type::Bool, pair());
    traced_.mod.prob = random_.chance(0.7) ? ir::input(ir::Input::P) : prob(seed ^ 0x960b);
    if (random_.chance(0.3)) traced_.mod.sink = expr(seed ^ 0x51c, Type::F32, head());
    shape_ = shape(seed);
  }

  const compiler::Traced& traced() const { return traced_; }
  const Shape& shape() const { return shape_; }

  /// The same with every s and every result of a function off by some ulps; s, whose terms may cancel, by some of 1
  /// too.
  compiler::Traced shaken(std::uint64_t seed) const {
    Random random(seed);
    compiler::Traced out = traced_;
    constexpr std::uint32_t offs = 5;
    const auto first = static_cast<std::uint32_t>(out.params.size());
    const auto off = [&](double plus) {
      const double by = (random.chance(0.5) ? 1 : -1) * (0.5 + random.unit() / 2) * ulps * 0x1p-24;
      const std::string name = "off" + std::to_string(out.params.size() - first);
      out.params.push_back(std::make_shared<detail::ParamCell>(detail::ParamCell{name, true, plus + by}));
      out.mod.params.push_back({name, Type::F32});
      return ir::param(static_cast<std::uint32_t>(out.params.size()) - 1, Type::F32);
    };
    for (std::uint32_t i = 0; i < offs; ++i) off(1);
    const Expr of_s = off(0);
    std::uint32_t next = 0;
    const auto shake = [&](const Expr& e, std::span<const Expr> args) -> Expr {
      const bool s = e->op == ir::Op::Input && static_cast<ir::Input>(e->bits) == ir::Input::S;
      if (!s && !is_inexact(e->op)) return nullptr;
      const Expr times = ir::op(ir::Op::Mul, args.empty() ? e : ir::with_args(e, args),
                                ir::param(first + next++ % offs, Type::F32));
      return s ? ir::op(ir::Op::Add, times, of_s) : times;
    };
    for (Expr* part : {&out.mod.score, &out.mod.mask, &out.mod.prob, &out.mod.sink})
      if (*part) *part = ir::rebuild(*part, shake);
    return out;
  }

 private:
  static std::uint32_t head() { return ir::bit(ir::Input::B) | ir::bit(ir::Input::H); }
  static std::uint32_t pair() {
    return head() | ir::bit(ir::Input::Q) | ir::bit(ir::Input::KV) | ir::bit(ir::Input::QLen) |
           ir::bit(ir::Input::KVLen);
  }

  Expr expr(std::uint64_t seed, Type type, std::uint32_t inputs) {
    ir::Grammar g = grammar_;
    g.inputs = inputs;
    g.random = inputs != head();
    return ir::random_expr(seed, type, g);
  }
  Expr score(std::uint64_t seed) {
    const Expr s = ir::input(ir::Input::S), e = expr(seed, Type::F32, pair() | ir::bit(ir::Input::S));
    if (random_.chance(0.4)) return e;
    return random_.chance(0.5) ? ir::op(ir::Op::Add, s, e)
                               : ir::op(ir::Op::Where, expr(~seed, Type::Bool, pair()), s, e);
  }
  Expr prob(std::uint64_t seed) {
    const Expr p = ir::input(ir::Input::P), e = expr(seed, Type::F32, pair() | ir::bit(ir::Input::P));
    return random_.chance(0.5) ? e : ir::op(ir::Op::Mul, p, e);
  }

  template <class T>
  T any(std::initializer_list<T> from) {
    return random_.pick(std::span(from.begin(), from.size()));
  }

  void data() {
    using enum DType;
    for (const auto& capture : grammar_.signature.captures) {
      const DType dtype = capture.type == Type::Bool  ? boolean
                          : capture.type == Type::I32 ? any({i32, i32, i64, i16, i8, u8})
                                                      : any({f32, f32, f16, bf16, f64});
      std::vector<std::int64_t> extents;
      for (int i = 0; i < capture.rank; ++i) extents.push_back(1 + random_.below(capture.rank > 2 ? 5 : 30));
      const Layout layout = any(
          {Layout::bhsd, Layout::bhsd, Layout::reversed, Layout::padded, Layout::spread, Layout::columns});
      const tests::Placed placed = tests::place(dtype, extents, layout);
      tests::each_element(placed.tensor, [&](std::int64_t at) {
        const double value = ir::random_value(random_, capture.type, hostile_, false);
        runtime::store(placed.tensor, at, tests::storable(dtype, value));
      });
      memory_.push_back(placed.memory);
      traced_.captures.push_back(placed.tensor);
      traced_.mod.captures.push_back({capture.name, dtype, capture.rank});
    }
    for (const auto& param : grammar_.signature.params) {
      const double value = ir::random_value(random_, param.type, hostile_, false);
      traced_.params.push_back(
          std::make_shared<detail::ParamCell>(detail::ParamCell{param.name, param.type == Type::F32, value}));
      traced_.mod.params.push_back({param.name, param.type});
    }
  }

  Shape shape(std::uint64_t seed) {
    const auto length = [&](std::uint32_t longest) -> std::int64_t {
      return 1 + random_.below(random_.chance(0.25) ? longest : 12);
    };
    Shape out{.batch = 1 + random_.below(2), .kv_heads = 1 + random_.below(2), .seed = seed};
    out.q_heads = out.kv_heads * (1 + random_.below(3));
    out.q_len = length(80);
    out.kv_len = length(200);
    out.d = 1 + random_.below(20);
    out.dv = 1 + random_.below(20);
    out.dtype = any({DType::f32, DType::f32, DType::bf16, DType::f16});
    out.layout = any({Layout::bhsd, Layout::bhsd, Layout::bhsd, Layout::bshd, Layout::columns, Layout::reversed,
                      Layout::padded, Layout::spread, Layout::one_head});
    out.kv_shared = random_.chance(0.1);
    out.q_offset = random_.chance(0.3) ? static_cast<std::int32_t>(random_.below(50)) : 0;
    if (random_.chance(0.15))
      for (int i = 0; i < 3; ++i) {
        out.q_lens.push_back(random_.below(20));
        out.kv_lens.push_back(random_.below(20));
      }
    if (out.packed()) out.kv_shared = false;
    return out;
  }

  Random random_;
  bool hostile_ = false;
  ir::Grammar grammar_;
  compiler::Traced traced_;
  Shape shape_;
  std::vector<std::shared_ptr<void>> memory_;
};

/// Dense attention of a larger error, relative to the oracle, is of no use as a yardstick.
constexpr double hopeless = 0.05;
/// Next to larger scores the oracle itself, in f64, loses what tells pairs apart; engines may know better, see
/// compiler::Fold.
constexpr double enormous = 1e9;

struct Tally {
  std::uint64_t cases = 0, hopeless = 0, refused = 0;
};

void run(std::uint64_t seed, const tests::Compared& what, Tally& tally) {
  const Case one(seed);
  ++tally.cases;
  std::vector<Subject> subjects;
  try {
    subjects.emplace_back(one.traced());
    for (const std::uint64_t shake : {1u, 2u, 3u}) subjects.emplace_back(one.shaken(seed * 3 + shake));
  } catch (const Error&) {
    ++tally.refused;
    return;
  }
  std::vector<const Subject*> yardsticks;
  for (const Subject& subject : subjects) yardsticks.push_back(&subject);
  // One instruction set a case, as each is a compile; every fourth seed is hostile.
  const auto& engines = tests::engines();
  if (engines.empty()) return;
  const std::span engine(&engines[seed / 4 % engines.size()], 1);
  const tests::Verdict verdict = tests::compare(subjects[0], tests::inputs(one.shape()), engine, what, yardsticks);
  if (!(verdict.dense_error < hopeless) || verdict.largest > enormous) {
    ++tally.hopeless;
    return;
  }
  if (!verdict.wrong.empty()) FAIL_CHECK("seed " << seed << "\n" << verdict.wrong);
}

void run(std::uint64_t count, const tests::Compared& what) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < count; ++seed) run(seed, what, tally);
  INFO(tally.hopeless << " hopeless and " << tally.refused << " refused of " << tally.cases);
  CHECK(tally.hopeless <= tally.cases / 3);
  CHECK(tally.refused <= tally.cases / 20);
}

}  // namespace

// A case compiles a kernel or more, so there are fewer than of other properties: 2 000 in the presets dev and ci.
TEST_CASE("engines compute random mods forward as the oracle does", "[fuzz][engine]") {
  run(ir::fuzz_count() / 90, {.backward = false});
}
TEST_CASE("engines compute random mods backward as the oracle does", "[fuzz][engine]") {
  run(ir::fuzz_count() / 200, {.forward = false});
}

}  // namespace attune

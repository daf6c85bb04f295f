// tests/compiler/derive.test.cpp — the derivative of each operation as text, conventions, and gradients of captures
#include "compiler/lower.h"

#include <array>
#include <limits>
#include <sstream>

#include "compiler/explain.h"
#include "compiler/simplify.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"
#include "tests/golden.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;
using ir::Expr, ir::Input, ir::Op;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// d / d s of a text, simplified, as text.
std::string by_s(std::string_view from) { return text(simplify(derive(expr(from), Input::S).by)); }

/// d / d s of a text at a value of s.
double slope(std::string_view from, double s) {
  Setting at;
  at.env.s = s;
  return at(derive(expr(from), Input::S).by);
}

Mod named() {
  Mod mod;
  for (const auto& c : names().captures)
    mod.captures.push_back({c.name,
                            c.type == ir::Type::F32   ? DType::f32
                            : c.type == ir::Type::I32 ? DType::i32
                                                      : DType::boolean,
                            c.rank});
  mod.params = names().params;
  return mod;
}

/// The terms of each capture's gradient, one per line.
std::string scatters(std::string_view from) {
  std::string out;
  for (Scatter s : derive(expr(from), Input::S).captures) {
    s.value = simplify(s.value);
    out += compiler::print(s, named()) + "\n";
  }
  return out;
}

}  // namespace

TEST_CASE("the derivative of every operation reads as in a table", "[derive][golden]") {
  std::string page;
  for (const std::string_view of : {"s",
                                    "cap",
                                    "random(3)",
                                    "f32(q)",
                                    "s + s",
                                    "s - cap",
                                    "cap - s",
                                    "-s",
                                    "s * s",
                                    "s * cap",
                                    "s / cap",
                                    "cap / s",
                                    "abs(s)",
                                    "min(s, cap)",
                                    "max(cap, s)",
                                    "clamp(s, -1.0f, 1.0f)",
                                    "clamp(cap, s, s)",
                                    "floor(s)",
                                    "ceil(s)",
                                    "round(s)",
                                    "trunc(s)",
                                    "sqrt(s)",
                                    "rsqrt(s)",
                                    "exp(s)",
                                    "exp2(s)",
                                    "log(s)",
                                    "log2(s)",
                                    "pow(s, 3.0f)",
                                    "pow(s, cap)",
                                    "pow(cap, s)",
                                    "sin(s)",
                                    "cos(s)",
                                    "tan(s)",
                                    "tanh(s)",
                                    "sigmoid(s)",
                                    "erf(s)",
                                    "where(kv <= q, s, cap)",
                                    "custom(round(s), 1.0f)",
                                    "sum(i, 4, slope[i] * s)",
                                    "sum(i, 2, sum(j, 3, tanh(bias[i, j] * s)))",
                                    "f32(i32(s))",
                                    "f32(s < cap)",
                                    "cap * tanh(s / cap)"})
    page += std::string(of) + "\n    " + by_s(of) + "\n";
  golden("compiler/derivatives", page);
}

TEST_CASE("what a captured tensor's gradient gets reads as in a table", "[derive][golden]") {
  std::string page;
  for (const std::string_view of :
       {"s + slope[h]", "s + slope[h] * f32(kv - q)", "s + bias[q, kv]", "s + gain[]", "s * slope[q] * slope[kv]",
        "s + slope[doc[kv]]", "s + slope[doc[doc[q - kv]]]", "where(kv <= q, slope[h], table[h])",
        "s + max(slope[h], table[h])", "custom(slope[h] * round(s), 2.0f)", "sum(i, 4, slope[i] * s)",
        "sum(i, 4, slope[q] * f32(i))", "sum(i, 2, sum(j, 3, slope[j] * table[i] * f32(i + j)))",
        "sum(i, 2, sum(j, 3, bias[i, j] * s))", "sum(i, 4, slope[i]) * sum(i, 4, table[i])",
        "sum(i, 2, table[i] * tanh(sum(j, 3, bias[i, j] * slope[j])))", "f32(doc[q])", "s + f32(keep[kv])"})
    page += std::string(of) + "\n" + scatters(of) + "\n";
  golden("compiler/scatters", page);
}

TEST_CASE("abs has no slope at 0", "[derive]") {
  CHECK(slope("abs(s)", 0) == 0);
  CHECK(slope("abs(s)", -0.0) == 0);
  CHECK(slope("abs(s)", 2) == 1);
  CHECK(slope("abs(s)", -2) == -1);
}

TEST_CASE("min and max pass to the first on a tie, and to the number beside a NaN", "[derive]") {
  CHECK(slope("max(s, 2.0f * s)", 0) == 1);
  CHECK(slope("max(2.0f * s, s)", 0) == 2);
  CHECK(slope("min(s, 3.0f * s)", 0) == 1);
  CHECK(slope("min(3.0f * s, s)", 0) == 3);
  // The zero that is the value may be the other one.
  CHECK(slope("max(-0.0f, s)", 0) == 0);
  CHECK(slope("max(s, 0.0f)", -0.0) == 1);
  CHECK(slope("min(0.0f, s)", -0.0) == 0);
  CHECK(slope("min(s, -0.0f)", 0) == 1);
  CHECK(slope("max(s, nan)", 1) == 1);
  CHECK(slope("max(nan, s)", 1) == 1);
  CHECK(slope("min(s, nan * cap)", 1) == 1);
  CHECK(slope("max(s, log(0.0f - cap))", 1) == 1);
  CHECK(slope("max(2.0f, s)", std::nan("")) == 0);
}

TEST_CASE("clamp passes on the closed range", "[derive]") {
  CHECK(slope("clamp(s, -1.0f, 1.0f)", -1) == 1);
  CHECK(slope("clamp(s, -1.0f, 1.0f)", 1) == 1);
  CHECK(slope("clamp(s, -1.0f, 1.0f)", 0.5) == 1);
  CHECK(slope("clamp(s, -1.0f, 1.0f)", 1.01) == 0);
  CHECK(slope("clamp(s, -1.0f, 1.0f)", -1.01) == 0);
  CHECK(slope("clamp(0.0f, s, 1.0f)", 0.5) == 1);
  CHECK(slope("clamp(0.0f, -1.0f, s)", -0.5) == 1);
}

TEST_CASE("rounding, comparisons and conversions to Int pass nothing", "[derive]") {
  for (const char* of :
       {"floor(s)", "ceil(s)", "round(s)", "trunc(s)", "f32(i32(s))", "f32(s < cap)", "where(s < 1.0f, 2.0f, 3.0f)"}) {
    INFO(of);
    CHECK(slope(of, 0.3) == 0);
  }
  CHECK(slope("f32(s) * 2.0f", 0.3) == 2);
}

TEST_CASE("a NaN or an infinity in the side not taken passes nothing", "[derive]") {
  CHECK(slope("where(s > 0.0f, log(s), s)", 0) == 1);
  CHECK(slope("where(s > 0.0f, log(s), s)", -1) == 1);
  CHECK(slope("where(s > 0.0f, sqrt(s), 0.0f)", 0) == 0);
  CHECK(slope("where(s != 0.0f, cap / s, 0.0f)", 0) == 0);
  CHECK(slope("max(s, 0.0f * rsqrt(s - s))", 3) == 1);
  // Guarded twice, with the guarded value shared by a side that is never taken.
  CHECK(slope("where(s > 0.0f, where(s > 1.0f, log(s - 1.0f), sqrt(s)), s)", 0) == 1);
  CHECK(slope("where(s > 0.0f, log(s) * sqrt(s), 2.0f * s) + where(s > 0.0f, log(s), 0.0f)", 0) == 2);
  CHECK(slope("sum(i, 3, where(s > f32(i), log(s - f32(i)), s))", 1) == 1 + 1 + 1);
  CHECK(slope("where(s > 0.0f, sum(i, 3, log(s) / s), s)", 0) == 1);
}

TEST_CASE("pow keeps to its limits where a factor is infinite", "[derive]") {
  CHECK(slope("pow(s, 0.0f)", 0) == 0);
  CHECK(slope("pow(s, 1.0f)", 0) == 1);
  CHECK(slope("pow(s, 2.0f)", 0) == 0);
  CHECK(slope("pow(s, 0.5f)", 0) == inf);
  CHECK(slope("pow(0.0f, s)", 2) == 0);
  CHECK(slope("pow(s, 3.0f)", -2) == Approx(12));
}

TEST_CASE("custom gives its own derivative to s, and its value's to captures", "[derive]") {
  CHECK(by_s("custom(s * s * s, 7.0f)") == "7.0f");
  CHECK(by_s("2.0f * custom(s, tanh(s))") == "2.0f * tanh(s)");
  CHECK(by_s("sum(i, 2, custom(s, f32(i)))") == "sum(i, 2, f32(i))");
  CHECK(slope("where(s > 0.0f, custom(s, log(s)), s)", 0) == 1);
  // The gradient of captures takes log(s) everywhere, that of s only above 0.
  CHECK(slope("custom(gain[] * log(s), 3.0f) + where(s > 0.0f, log(s), 0.0f)", 0) == 3);
}

TEST_CASE("a sink is derived by its captures alone", "[derive]") {
  const Derivative d = derive(expr("2.0f * slope[h]"), std::nullopt);
  CHECK_FALSE(d.by);
  REQUIRE(d.captures.size() == 1);
  CHECK(text(d.captures[0].value) == "2.0f");
}

TEST_CASE("a prob mod is derived by p, and s counts for nothing", "[derive]") {
  CHECK(text(simplify(derive(expr("p * p"), Input::P).by)) == "p + p");
  CHECK(text(simplify(derive(expr("p * p"), Input::S).by)) == "0.0f");
}

TEST_CASE("the loops of a scatter have binders that nothing within them takes", "[derive]") {
  const Derivative d = derive(expr("sum(i, 2, sum(j, 3, slope[j] * table[i] * f32(10 * i + j)))"), Input::S);
  REQUIRE(d.captures.size() == 2);
  Setting at;
  for (const Scatter& s : d.captures) {
    REQUIRE(s.loops.size() == 1);
    CHECK(s.loops[0].binder > s.value->binder);
    CHECK((s.value->free & ~(1u << (s.loops[0].binder - 1))) == 0);
    std::array<std::int32_t, ir::max_binders + 1> bound{};
    at.env.bound = bound;
    for (std::uint32_t k = 0; k < s.loops[0].count; ++k) {
      bound[s.loops[0].binder] = static_cast<std::int32_t>(k);
      const bool outer = s.capture == 1;  // table is read by i, slope by j
      double expected = 0;
      for (std::int32_t other = 0; other < (outer ? 3 : 2); ++other) {
        const std::int32_t i = outer ? static_cast<std::int32_t>(k) : other,
                           j = outer ? other : static_cast<std::int32_t>(k);
        const std::array<std::int32_t, 1> index{other};
        expected += at.read(outer ? 0 : 1, index) * (10 * i + j);
      }
      CHECK(at(s.value) == Approx(expected));
    }
  }
}

TEST_CASE("a value used twice 60 times over is derived in as many steps as it has", "[derive]") {
  Expr e = ir::input(Input::S);
  for (int i = 0; i < 60; ++i) e = ir::op(Op::Mul, e, e);
  const Derivative d = derive(e, Input::S);
  CHECK(ir::count(d.by) < 300);
  Setting at;
  at.env.s = 1;
  CHECK(at(d.by) == 0x1p60);
}

TEST_CASE("sums that hold each other twice are derived once each", "[derive]") {
  Expr e = ir::input(Input::S);
  for (int i = 0; i < 24; ++i) {
    const Expr a = ir::fresh_bound(), b = ir::fresh_bound();
    e = ir::op(Op::Add, ir::sum(a, 1, ir::op(Op::Mul, e, ir::op(Op::F32, ir::op(Op::Add, a, ir::integer(1))))),
               ir::sum(b, 1, ir::op(Op::Mul, e, ir::real(0.5f))));
  }
  // 2^24 bodies if each sum were derived on its own.
  const Derivative d = derive(e, Input::S);
  CHECK(ir::count(d.by) < 10'000);
}

TEST_CASE("a chain of 100 000 nodes is derived without a deep stack", "[derive]") {
  Expr e = ir::input(Input::S);
  for (int i = 0; i < 50'000; ++i) e = ir::op(Op::Add, ir::op(Op::Mul, e, ir::real(0.5f)), ir::input(Input::S));
  const Derivative d = derive(e, Input::S);
  Setting at;
  CHECK(at(d.by) == Approx(2));
}

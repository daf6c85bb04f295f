// tests/ir/range.test.cpp — tight where it matters to masks, honest about NaN and overflow; facts from conditions
#include "ir/range.h"

#include <cmath>
#include <limits>

#include "ir/parse.h"
#include "tests/catch.h"

namespace Catch {
template <>
struct StringMaker<attune::ir::Interval> {
  static std::string convert(const attune::ir::Interval& x) {
    return "[" + StringMaker<double>::convert(x.lo) + ", " + StringMaker<double>::convert(x.hi) + "]" +
           (x.nan ? " or nan" : "");
  }
};
}  // namespace Catch

namespace attune::ir {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();
constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int_max = std::numeric_limits<std::int32_t>::max();
const Interval yes = Interval::point(1), no = Interval::point(0), maybe{0, 1, false};

/// i, j: Int params; x, y: Float params; c: a Bool param; doc: an Int capture.
const Signature& signature() {
  static const Signature all{
      {{"doc", Type::I32, 1}},
      {{"i", Type::I32}, {"j", Type::I32}, {"x", Type::F32}, {"y", Type::F32}, {"c", Type::Bool}}};
  return all;
}
Expr expr(std::string_view text) {
  Scope scope;
  scope.signature = &signature();
  return parse(text, scope);
}
Bounds with(Interval i, Interval j = Interval::all(Type::I32), Interval x = Interval::all(Type::F32),
            Interval y = Interval::all(Type::F32)) {
  Bounds bounds;
  bounds.params = {i, j, x, y};
  return bounds;
}
Interval ints(std::string_view text, Interval i, Interval j = Interval::all(Type::I32)) {
  return range(expr(text), with(i, j));
}
Interval reals(std::string_view text, Interval x, Interval y = Interval::all(Type::F32)) {
  return range(expr(text), with({}, {}, x, y));
}
Interval given(std::string_view condition, bool truth, std::string_view text, const Bounds& bounds = {}) {
  return range(expr(text), assume(expr(condition), truth, bounds));
}
const Interval any = Interval::all(Type::I32);

}  // namespace

TEST_CASE("coordinates are not negative, so their difference does not wrap", "[range]") {
  CHECK(range(expr("q - kv")) == Interval{-double{int_max}, int_max, false});
  CHECK(range(expr("q + kv")) == any);
  CHECK(range(expr("s")) == Interval{-inf, inf, true});
  CHECK(range(expr("p")) == Interval{0, 1, true});
  CHECK(range(expr("doc[q] == doc[kv]")) == maybe);
}

TEST_CASE("a kv is before kv_len, but a q need not be before q_len", "[range]") {
  CHECK(range(expr("kv < kv_len")) == yes);
  CHECK(range(expr("kv_len <= kv")) == no);
  CHECK(range(expr("kv_len - kv")) == Interval{1, int_max, false});
  CHECK(range(expr("q < q_len")) == maybe);
}

TEST_CASE("Int arithmetic is tight until it may wrap", "[range]") {
  CHECK(ints("i + j", {1, 5}, {-2, 3}) == Interval{-1, 8, false});
  CHECK(ints("i - j", {1, 5}, {-2, 3}) == Interval{-2, 7, false});
  CHECK(ints("i * j", {-3, 5}, {-2, 4}) == Interval{-12, 20, false});
  CHECK(ints("i * i", {-3, 5}) == Interval{0, 25, false});
  CHECK(ints("i + 1", {0, int_max}) == any);
  CHECK(ints("-i", {int_min, 0}) == any);
  CHECK(ints("abs(i)", {-7, 3}) == Interval{0, 7, false});
  CHECK(ints("abs(i)", any) == any);
  CHECK(ints("i - i", any) == no);
}

TEST_CASE("divisions and remainders", "[range]") {
  CHECK(ints("i / 3", {-7, 8}) == Interval{-2, 2, false});
  CHECK(ints("floordiv(i, 3)", {-7, 8}) == Interval{-3, 2, false});
  CHECK(ints("i / j", {10, 20}, {0, 5}) == Interval{0, 20, false});
  CHECK(ints("i / j", any, {-1, 1}) == any);
  CHECK(ints("i % 8", {0, 100}) == Interval{0, 7, false});
  CHECK(ints("i % 8", {-100, 100}) == Interval{-7, 7, false});
  CHECK(ints("i % 8", {-3, 5}) == Interval{-3, 5, false});
  CHECK(ints("i % 8", {17, 20}) == Interval{1, 4, false});
  CHECK(ints("i % 0", any) == no);
  CHECK(ints("floormod(i, 8)", any) == Interval{0, 7, false});
  CHECK(ints("floormod(i, 8)", {-7, -5}) == Interval{1, 3, false});
  CHECK(ints("floormod(i, -8)", any) == Interval{-7, 0, false});
  CHECK(ints("floormod(i, j)", {0, 4}, {5, 9}) == Interval{0, 4, false});
}

TEST_CASE("bits", "[range]") {
  CHECK(ints("i & 7", any) == Interval{0, 7, false});
  CHECK(ints("i & j", {0, 100}, {0, 9}) == Interval{0, 9, false});
  CHECK(ints("i | j", {4, 5}, {0, 9}) == Interval{4, 15, false});
  CHECK(ints("i ^ j", {0, 5}, {0, 9}) == Interval{0, 15, false});
  CHECK(ints("i ^ i", any) == no);
  CHECK(ints("~i", {0, 5}) == Interval{-6, -1, false});
  CHECK(ints("i << 3", {-1, 5}) == Interval{-8, 40, false});
  CHECK(ints("i << 30", {0, 5}) == any);
  CHECK(ints("i >> 3", {-9, 80}) == Interval{-2, 10, false});
  CHECK(ints("i >> 35", {-9, 80}) == Interval{-2, 10, false});
  CHECK(ints("i >> j", {16, 64}, {1, 2}) == Interval{4, 32, false});
  CHECK(ints("clamp(i, 2, 6)", {-9, 4}) == Interval{2, 4, false});
}

TEST_CASE("Float arithmetic is exact where f32 is, else one step wider", "[range]") {
  CHECK(reals("x + 1.0", {0, 2}) == Interval{1, 3, false});
  CHECK(reals("x * 0.5", {-4, 2}) == Interval{-2, 1, false});
  const Interval third = reals("x / 3.0", {1, 1});
  CHECK(third.lo < 1.0 / 3);
  CHECK(third.hi > 1.0 / 3);
  CHECK(third.hi - third.lo < 1e-7);
  CHECK(reals("x * x", {-3, 2}) == Interval{0, 9, false});
  CHECK(reals("x - x", {-3, 2}) == no);
}

TEST_CASE("what overflows f32 is infinite, though f64 holds it", "[range]") {
  CHECK(reals("x * x", {1e30, 1e30}).hi == inf);
  CHECK(std::isfinite(reals("x * x", {1e30, 1e30}).lo));
  CHECK(reals("exp(x)", {0, 89}).hi == inf);
  CHECK(reals("x + x", {-3e38, 1}).lo == -inf);
}

TEST_CASE("NaN is foreseen", "[range]") {
  CHECK(reals("x + y", {0, inf}, {-inf, 0}).nan);
  CHECK_FALSE(reals("x + y", {0, inf}, {0, inf}).nan);
  CHECK_FALSE(reals("x + x", {-inf, inf}).nan);
  CHECK(reals("x - x", {0, inf}).nan);
  CHECK(reals("x * y", {0, 1}, {1, inf}).nan);
  CHECK_FALSE(reals("x * y", {1, 2}, {1, inf}).nan);
  CHECK(reals("x / y", {0, 1}, {0, 1}).nan);
  CHECK_FALSE(reals("x / y", {1, 2}, {0, 1}).nan);
  CHECK(reals("x / y", {1, inf}, {1, inf}).nan);
  CHECK(reals("log(x)", {-1, 1}).nan);
  CHECK_FALSE(reals("log(x)", {0, 1}).nan);
  CHECK(reals("sqrt(x)", {-1, 1}).nan);
  CHECK(reals("sqrt(x)", {-2, -1}) == Interval{inf, -inf, true});
  CHECK(reals("pow(x, y)", {-1, 1}, {0, 1}).nan);
  CHECK_FALSE(reals("pow(x, 2.0)", {-1, 1}).nan);
  CHECK(reals("sin(x)", {0, inf}).nan);
  CHECK_FALSE(reals("sin(x)", {0, 9}).nan);
  CHECK_FALSE(reals("min(x, 30.0)", {-inf, inf, true}).nan);
  CHECK(reals("min(x, 30.0)", {-inf, inf, true}) == Interval{-inf, 30, false});
  CHECK(reals("i32(x)", {5, 9, true}) == Interval{0, 9, false});
}

TEST_CASE("functions stay within what they can be", "[range]") {
  CHECK(reals("tanh(x)", {-inf, inf}) == Interval{-1, 1, false});
  CHECK(reals("30.0 * tanh(x)", {-inf, inf}) == Interval{-30, 30, false});
  CHECK(reals("sigmoid(x)", {-inf, inf}) == Interval{0, 1, false});
  CHECK(reals("erf(x)", {-inf, inf}) == Interval{-1, 1, false});
  CHECK(reals("exp(x)", {-inf, 0}).lo == 0);
  CHECK(reals("exp(x)", {-inf, 0}).hi == Approx(1));
  CHECK(reals("sqrt(x)", {0, 16}) == Interval{0, 4, false});
  CHECK(reals("cos(x)", {-9, 9}) == Interval{-1, 1, false});
  CHECK(range(expr("random(q)")) == Interval{0, 1 - 0x1p-24, false});
  CHECK(range(expr("i32(kept(q, 7))")) == Interval{0, 1, false});
  CHECK(range(expr("i32(kept(q, 65536))")) == Interval{1, 1, false});
  CHECK(range(expr("i32(kept(q, 0 - 3))")) == Interval{0, 0, false});
}

TEST_CASE("no positive lower bound is a denormal, for an engine may flush it", "[range]") {
  CHECK(reals("x * 0.5", {std::numeric_limits<float>::min(), 1}).lo == 0);
  CHECK(reals("x / y", {1, 1}, {1e-40, 1}).hi == inf);
}

TEST_CASE("comparisons are decided when proven, NaN minded", "[range]") {
  CHECK(ints("i < j", {0, 4}, {5, 9}) == yes);
  CHECK(ints("i < j", {0, 5}, {5, 9}) == maybe);
  CHECK(ints("i <= j", {0, 5}, {5, 9}) == yes);
  CHECK(ints("i > j", {0, 5}, {5, 9}) == no);
  CHECK(ints("i == j", {0, 4}, {5, 9}) == no);
  CHECK(ints("i != j", {5, 5}, {5, 5}) == no);
  CHECK(reals("x < y", {0, 1}, {2, 3, true}) == maybe);
  CHECK(reals("x > y", {0, 1}, {2, 3, true}) == no);
  CHECK(reals("x != y", {0, 1}, {2, 3, true}) == yes);
  CHECK(reals("x == x", {0, 1}) == yes);
  CHECK(reals("x == x", {0, 1, true}) == maybe);
  CHECK(reals("x < x", {0, 1, true}) == no);
}

TEST_CASE("a sum is as many times its body, with its variable in bounds", "[range]") {
  CHECK(range(expr("sum(k, 5, k)")) == Interval{0, 20, false});
  CHECK(ints("sum(k, 4, k * i)", {0, 2}) == Interval{0, 24, false});
  CHECK(range(expr("sum(k, 4, sum(m, 3, k + m))")) == Interval{0, 60, false});
  // The same variable has another range in each sum.
  CHECK(range(expr("sum(k, 4, k + 1) + sum(k, 100, k + 1)")) == Interval{4 + 100, 16 + 10'000, false});
  CHECK(range(expr("sum(k, 0, q)")) == no);
  CHECK(range(expr("sum(k, 3, q)")) == any);
  CHECK(reals("sum(k, 10, tanh(x))", {-inf, inf}) == Interval{-10, 10, false});
}

TEST_CASE("where takes the side that is taken, and knows its condition", "[range]") {
  CHECK(range(expr("where(kv < kv_len, 1, 5)")) == yes);
  CHECK(range(expr("where(q >= 10, q, 10)")) == Interval{10, int_max, false});
  CHECK(range(expr("where(q > kv, q - kv, 0)")) == Interval{0, int_max, false});
  CHECK(reals("where(x == x, x, 0.0)", {-inf, inf, true}) == Interval{-inf, inf, false});
  CHECK(reals("where(x > 1.0, 1.0, where(x < -1.0, -1.0, x))", {-inf, inf, true}) == Interval{-1, 1, true});
}

TEST_CASE("a comparison narrows both sides", "[assume]") {
  CHECK(given("q < 10", true, "q") == Interval{0, 9, false});
  CHECK(given("q < 10", false, "q") == Interval{10, int_max, false});
  CHECK(given("10 >= q", true, "q") == Interval{0, 10, false});
  CHECK(given("q == 10", true, "q + 1") == Interval::point(11));
  CHECK(given("q != 0", true, "q") == Interval{1, int_max, false});
  CHECK(given("i < j", true, "i", with({0, 100}, {-5, 50})) == Interval{0, 49, false});
  CHECK(given("i < j", true, "j", with({0, 100}, {-5, 50})) == Interval{1, 50, false});
  CHECK(given("x < 3.0", true, "x") == Interval{-inf, 3, false});
  CHECK(given("x < 3.0", false, "x") == Interval{3, inf, true});
  CHECK(given("c == (q < 3)", true, "q", assume(expr("c"), true, {})) == Interval{0, 2, false});
}

TEST_CASE("a condition speaks of the difference of its sides", "[assume]") {
  CHECK(given("kv <= q", true, "q - kv") == Interval{0, int_max, false});
  CHECK(given("kv <= q", true, "kv - q") == Interval{-double{int_max}, 0, false});
  CHECK(given("kv <= q", true, "kv > q") == no);
  CHECK(given("kv <= q", true, "kv < q + 0 || kv == q") == maybe);
  CHECK(given("q - kv < 128", true, "q - kv") == Interval{-double{int_max}, 127, false});
  CHECK(given("q - kv < 128 && kv <= q", true, "q - kv") == Interval{0, 127, false});
  CHECK(given("abs(q - kv) <= 4", true, "kv - q") == Interval{-4, 4, false});
  // Two Ints may be far apart: their difference may wrap, so its range says nothing.
  CHECK(given("i < j", true, "i - j") == any);
}

TEST_CASE("what is known goes through && || ! and arithmetic", "[assume]") {
  CHECK(given("q >= 2 && q < 10", true, "q") == Interval{2, 9, false});
  CHECK(given("q < 2 || q >= 10", false, "q") == Interval{2, 9, false});
  CHECK(given("!(q < 10)", true, "q") == Interval{10, int_max, false});
  CHECK(given("q < 10 || i > 3", true, "i", with({0, 3})) == Interval{0, 3, false});
  CHECK(given("q < 10 || i > 3", true, "q", with({0, 3})) == Interval{0, 9, false});
  CHECK(given("q - 5 > 3", true, "q") == Interval{9, int_max, false});
  CHECK(given("-q > -3", true, "q") == Interval{0, 2, false});
  CHECK(given("3 * q < 10", true, "q", with(any)) == Interval{0, int_max, false});
  CHECK(given("3 * i < 10", true, "i", with({-100, 100})) == Interval{-100, 3, false});
  CHECK(given("q / 128 == 2", true, "q") == Interval{256, 383, false});
  CHECK(given("floordiv(i, 4) < 0", true, "i") == Interval{int_min, -1, false});
  CHECK(given("q >> 4 == 1", true, "q") == Interval{16, 31, false});
  CHECK(given("f32(q) < 10.5", true, "q") == Interval{0, 10, false});
  CHECK(given("max(q, kv) < 9", true, "kv") == Interval{0, 8, false});
  CHECK(given("where(c, q, 99) < 9", true, "q") == Interval{0, 8, false});
  CHECK(given("where(c, q, 99) < 9", true, "c") == yes);
  CHECK(given("x + 1.0 <= 3.0", true, "x").hi == Approx(2));
  // The right side narrows the left, though it comes later.
  CHECK(given("i < j && j < 5", true, "i", with({0, 100}, {0, 100})) == Interval{0, 3, false});
}

TEST_CASE("rounding may bring a large Int over the bound that its Float keeps", "[assume]") {
  // f32(16777217) is 16777216.
  CHECK(given("f32(q) <= 16777216.0", true, "q").contains(16777217));
}

TEST_CASE("assumptions that contradict each other leave nothing", "[assume]") {
  CHECK(given("q < 3 && q > 5", true, "q").empty());
  CHECK(given("q < 3 && q > 5", true, "q + kv").empty());
  CHECK(range(expr("where(q < 3 && q > 5, 100, 1)")) == yes);
}

TEST_CASE("nested wheres over shared nodes take no exponential time", "[range]") {
  Expr e = expr("x");
  for (int i = 0; i < 2'000; ++i) {
    const Expr limit = real(static_cast<float>(i));
    e = op(Op::Where, op(Op::Lt, e, limit), op(Op::Add, e, limit), op(Op::Sub, e, limit));
  }
  Ranger range((Bounds()));
  CHECK(range(e).nan);
  const Bounds narrowed = assume(op(Op::Lt, e, real(1)), true, {});
  CHECK_FALSE(narrowed.facts.empty());
}

}  // namespace attune::ir

// tests/ir/eval.test.cpp — each op's corner cases, both precisions, and flattened loops
#include "ir/eval.h"

#include <cmath>
#include <limits>

#include "tests/catch.h"
#include <attune/error.h>

namespace attune::ir {
namespace {

constexpr std::int32_t int_min = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t int_max = std::numeric_limits<std::int32_t>::max();
constexpr double inf = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

double ints(Op op, std::initializer_list<double> args) {
  return apply(op, Type::I32, std::span(args.begin(), args.size()), Precision::f64);
}
double reals(Op op, std::initializer_list<double> args, Precision precision = Precision::f64) {
  return apply(op, Type::F32, std::span(args.begin(), args.size()), precision);
}
double single(Op op, std::initializer_list<double> args) { return reals(op, args, Precision::f32); }

const Expr s = input(Input::S), q = input(Input::Q), kv = input(Input::KV);
Expr plus(const Expr& a, const Expr& b) { return op(Op::Add, a, b); }
Expr times(const Expr& a, const Expr& b) { return op(Op::Mul, a, b); }

}  // namespace

TEST_CASE("Int arithmetic wraps", "[eval]") {
  CHECK(ints(Op::Add, {int_max, 1}) == int_min);
  CHECK(ints(Op::Sub, {int_min, 1}) == int_max);
  CHECK(ints(Op::Mul, {int_max, int_max}) == 1);
  CHECK(ints(Op::Mul, {65536, 65536}) == 0);
  CHECK(ints(Op::Neg, {int_min}) == int_min);
  CHECK(ints(Op::Abs, {int_min}) == int_min);
  CHECK(ints(Op::Abs, {-7}) == 7);
}

TEST_CASE("Int division truncates and floordiv floors", "[eval]") {
  CHECK(ints(Op::Div, {-7, 2}) == -3);
  CHECK(ints(Op::Rem, {-7, 2}) == -1);
  CHECK(ints(Op::Rem, {7, -2}) == 1);
  CHECK(ints(Op::FloorDiv, {-7, 2}) == -4);
  CHECK(ints(Op::FloorDiv, {7, -2}) == -4);
  CHECK(ints(Op::FloorDiv, {-6, 2}) == -3);
  CHECK(ints(Op::FloorMod, {-7, 2}) == 1);
  CHECK(ints(Op::FloorMod, {7, -2}) == -1);
  CHECK(ints(Op::FloorMod, {-6, 2}) == 0);
}

TEST_CASE("anything by 0 is 0, and INT_MIN by -1 wraps", "[eval]") {
  for (const Op op : {Op::Div, Op::Rem, Op::FloorDiv, Op::FloorMod})
    for (const double x : {double{int_min}, -1.0, 0.0, 5.0}) CHECK(ints(op, {x, 0}) == 0);
  CHECK(ints(Op::Div, {int_min, -1}) == int_min);
  CHECK(ints(Op::FloorDiv, {int_min, -1}) == int_min);
  CHECK(ints(Op::Rem, {int_min, -1}) == 0);
  CHECK(ints(Op::FloorMod, {int_min, -1}) == 0);
}

TEST_CASE("shifts mask their count and >> keeps the sign", "[eval]") {
  CHECK(ints(Op::Shl, {1, 31}) == int_min);
  CHECK(ints(Op::Shl, {3, 33}) == 6);
  CHECK(ints(Op::Shl, {1, -1}) == int_min);
  CHECK(ints(Op::Shr, {-8, 1}) == -4);
  CHECK(ints(Op::Shr, {-8, 32}) == -8);
  CHECK(ints(Op::BitAnd, {-4, 7}) == 4);
  CHECK(ints(Op::BitOr, {-4, 1}) == -3);
  CHECK(ints(Op::BitXor, {-1, 5}) == -6);
  CHECK(ints(Op::BitNot, {0}) == -1);
}

TEST_CASE("Float to Int truncates and saturates, NaN gives 0", "[eval]") {
  CHECK(reals(Op::I32, {-1.9}) == -1);
  CHECK(reals(Op::I32, {1e20}) == int_max);
  CHECK(reals(Op::I32, {-inf}) == int_min);
  CHECK(reals(Op::I32, {nan}) == 0);
  CHECK(reals(Op::I32, {2147483647.0}) == int_max);
}

TEST_CASE("Int to Float is exact in f64 and rounds to nearest even in f32", "[eval]") {
  CHECK(ints(Op::F32, {16777217}) == 16777217);
  CHECK(apply(Op::F32, Type::I32, std::array{16777217.0}, Precision::f32) == 16777216);
  CHECK(apply(Op::F32, Type::I32, std::array{16777219.0}, Precision::f32) == 16777220);
}

TEST_CASE("min and max return the other operand when one is NaN, and -0 is below 0", "[eval]") {
  CHECK(reals(Op::Min, {nan, 2}) == 2);
  CHECK(reals(Op::Min, {2, nan}) == 2);
  CHECK(reals(Op::Max, {nan, 2}) == 2);
  CHECK(reals(Op::Max, {2, nan}) == 2);
  CHECK(std::isnan(reals(Op::Max, {nan, nan})));
  for (const double x : {0.0, -0.0})
    for (const double y : {0.0, -0.0}) {
      CHECK(std::signbit(reals(Op::Min, {x, y})) == (std::signbit(x) || std::signbit(y)));
      CHECK(std::signbit(reals(Op::Max, {x, y})) == (std::signbit(x) && std::signbit(y)));
    }
  CHECK_FALSE(std::signbit(reals(Op::Clamp, {-0.0, 0.0, 1})));
  CHECK(std::signbit(reals(Op::Clamp, {0.0, -1, -0.0})));
  CHECK(reals(Op::Clamp, {nan, 1, 2}) == 1);
  CHECK(reals(Op::Clamp, {5, 3, 1}) == 1);
  CHECK(ints(Op::Clamp, {-5, 0, 9}) == 0);
}

TEST_CASE("comparisons with NaN are false, and != is true", "[eval]") {
  for (const Op op : {Op::Eq, Op::Lt, Op::Le, Op::Gt, Op::Ge}) {
    CHECK(reals(op, {nan, 1}) == 0);
    CHECK(reals(op, {1, nan}) == 0);
    CHECK(reals(op, {nan, nan}) == 0);
  }
  CHECK(reals(Op::Ne, {nan, nan}) == 1);
  CHECK(reals(Op::Eq, {0.0, -0.0}) == 1);
}

TEST_CASE("round takes halves away from zero", "[eval]") {
  CHECK(reals(Op::Round, {2.5}) == 3);
  CHECK(reals(Op::Round, {-0.5}) == -1);
  CHECK(reals(Op::Trunc, {-1.5}) == -1);
  CHECK(reals(Op::Floor, {-1.5}) == -2);
  CHECK(reals(Op::Ceil, {-1.5}) == -1);
}

TEST_CASE("Float functions at the ends of their domains", "[eval]") {
  CHECK(reals(Op::Div, {1, 0}) == inf);
  CHECK(std::isnan(reals(Op::Sqrt, {-1})));
  CHECK(reals(Op::Rsqrt, {0}) == inf);
  CHECK(reals(Op::Rsqrt, {4}) == 0.5);
  CHECK(reals(Op::Log, {0}) == -inf);
  CHECK(std::isnan(reals(Op::Log2, {-1})));
  CHECK(reals(Op::Log2, {8}) == 3);
  CHECK(reals(Op::Exp2, {-1}) == 0.5);
  CHECK(reals(Op::Pow, {nan, 0}) == 1);
  CHECK(reals(Op::Pow, {-2, 3}) == -8);
  CHECK(std::isnan(reals(Op::Pow, {-2, 0.5})));
  CHECK(reals(Op::Tanh, {inf}) == 1);
  CHECK(reals(Op::Sigmoid, {-inf}) == 0);
  CHECK(reals(Op::Sigmoid, {0}) == 0.5);
  CHECK(reals(Op::Erf, {-inf}) == -1);
  CHECK(reals(Op::Exp, {1}) == Approx(2.718281828459045).epsilon(1e-15));
  CHECK(reals(Op::Sin, {1}) == Approx(0.8414709848078965).epsilon(1e-15));
  CHECK(reals(Op::Cos, {1}) == Approx(0.5403023058681398).epsilon(1e-15));
  CHECK(reals(Op::Tan, {1}) == Approx(1.5574077246549023).epsilon(1e-15));
}

TEST_CASE("every Float op rounds to f32 in f32 precision", "[eval]") {
  CHECK(single(Op::Add, {1, 0x1p-25}) == 1);
  CHECK(reals(Op::Add, {1, 0x1p-25}) == 1 + 0x1p-25);
  CHECK(single(Op::Mul, {1e30f, 1e30f}) == inf);
  CHECK(reals(Op::Mul, {1e30f, 1e30f}) < inf);
  CHECK(single(Op::Exp, {89}) == inf);
  for (const Op op : {Op::Sqrt, Op::Rsqrt, Op::Exp, Op::Exp2, Op::Log, Op::Log2, Op::Sin, Op::Cos, Op::Tan, Op::Tanh,
                      Op::Sigmoid, Op::Erf}) {
    const double x = single(op, {0.7f});
    CHECK(x == static_cast<float>(x));
    CHECK(x == Approx(reals(op, {0.7f})).epsilon(1e-6));
  }
}

TEST_CASE("inputs and params are rounded to f32 on entry in f32 precision", "[eval]") {
  Env env;
  env.s = 0.1;
  const std::array params{0.2};
  env.params = params;
  CHECK(eval(s, env) == 0.1);
  CHECK(eval(s, env, Precision::f32) == 0.1f);
  CHECK(eval(param(0, Type::F32), env, Precision::f32) == 0.2f);
}

TEST_CASE("Bool ops and where", "[eval]") {
  const auto bools = [](Op op, std::initializer_list<double> args) {
    return apply(op, Type::Bool, std::span(args.begin(), args.size()), Precision::f64);
  };
  CHECK(bools(Op::And, {1, 0}) == 0);
  CHECK(bools(Op::Or, {1, 0}) == 1);
  CHECK(bools(Op::Not, {0}) == 1);
  CHECK(bools(Op::F32, {1}) == 1);
  CHECK(reals(Op::Where, {1, 2, nan}) == 2);
  CHECK(reals(Op::Where, {0, nan, 3}) == 3);
}

TEST_CASE("what needs an Env is not applied", "[eval]") {
  for (const Op op : {Op::Literal, Op::Input, Op::Param, Op::Read, Op::Bound, Op::Field, Op::Sum, Op::Random, Op::Kept})
    CHECK_THROWS_AS(ints(op, {1}), Bug);
}

TEST_CASE("an expression reads its inputs, params, captures and fields", "[eval]") {
  Env env;
  env.b = 1, env.h = 2, env.q = 3, env.kv = 4, env.q_len = 5, env.kv_len = 6, env.origin = 7, env.p = 0.5;
  CHECK(eval(input(Input::B), env) == 1);
  CHECK(eval(input(Input::H), env) == 2);
  CHECK(eval(input(Input::QLen), env) == 5);
  CHECK(eval(input(Input::KVLen), env) == 6);
  CHECK(eval(input(Input::Origin), env) == 7);
  CHECK(eval(input(Input::P), env) == 0.5);
  const std::array head{10.0}, col{30.0};
  const std::array row{20.0, 21.0};
  env.head = head, env.row = row, env.col = col;
  CHECK(eval(field(Level::Row, 1, Type::I32), env) == 21);
  CHECK(eval(field(Level::Col, 0, Type::I32), env) == 30);
  std::vector<std::int32_t> asked;
  const ReadCapture capture = [&](std::uint32_t slot, std::span<const std::int32_t> index) {
    asked.assign(index.begin(), index.end());
    return slot + 0.5;
  };
  env.read = &capture;
  CHECK(eval(read(3, Type::F32, std::array{q, kv, op(Op::Neg, q), integer(9)}), env) == 3.5);
  CHECK(asked == std::vector<std::int32_t>{3, 4, -3, 9});
  CHECK(eval(read(1, Type::F32, {}), env) == 1.5);
  CHECK(asked.empty());
  CHECK(eval(op(Op::Random, integer(5)), env) == random(5, 1, 2, 3, 4));
  for (const std::int32_t n : {0, 20'000, 40'000, 65'536})
    CHECK(eval(op(Op::Kept, integer(5), integer(n)), env) == kept(5, n, 1, 2, 3, 4));
  CHECK(eval(op(Op::Custom, real(2), real(7)), env) == 2);
}

TEST_CASE("an expression without what it reads is a Bug", "[eval]") {
  CHECK_THROWS_AS(eval(param(0, Type::F32), Env{}), Bug);
  CHECK_THROWS_AS(eval(field(Level::Head, 0, Type::F32), Env{}), Bug);
  CHECK_THROWS_AS(eval(read(0, Type::F32, {}), Env{}), Bug);
  CHECK_THROWS_AS(eval(plus(bound(1), q), Env{}), Bug);
}

TEST_CASE("a sum adds from 0 upwards, in order", "[eval]") {
  const Expr i = fresh_bound();
  Env env;
  env.q = 3;
  CHECK(eval(sum(i, 5, times(i, q)), env) == 30);
  CHECK(eval(sum(i, 0, i), env) == 0);
  CHECK(eval(sum(i, 7, q), env) == 21);
  CHECK(eval(sum(i, 3, integer(int_max)), env) == int_max - 2);
  // In f32, 2^24 + 1 + 1 stays 2^24 and 1 + 1 + 2^24 does not, which reveals the order.
  const Expr big = op(Op::Where, op(Op::Eq, i, integer(0)), real(0x1p24f), real(1));
  const Expr late = op(Op::Where, op(Op::Eq, i, integer(2)), real(0x1p24f), real(1));
  CHECK(eval(sum(i, 3, big), env, Precision::f32) == 0x1p24);
  CHECK(eval(sum(i, 3, late), env, Precision::f32) == 0x1p24 + 2);
}

TEST_CASE("nested and sibling sums each have their own variable", "[eval]") {
  const Expr i = fresh_bound(), j = fresh_bound();
  const Expr first = sum(j, 3, times(i, plus(j, q)));
  const Expr second = sum(j, 4, plus(times(j, j), first));
  const Expr shared = times(j, integer(3));
  const Expr siblings = plus(sum(j, 2, shared), sum(j, 5, plus(shared, i)));
  const Expr e = sum(i, 5, plus(plus(second, first), plus(i, siblings)));
  Env env;
  env.q = 7;
  int want = 0;
  for (int a = 0; a < 5; ++a) {
    int one = 0, two = 0, three = 0, four = 0;
    for (int b = 0; b < 3; ++b) one += a * (b + 7);
    for (int b = 0; b < 4; ++b) two += b * b + one;
    for (int b = 0; b < 2; ++b) three += 3 * b;
    for (int b = 0; b < 5; ++b) four += 3 * b + a;
    want += two + one + a + three + four;
  }
  CHECK(eval(e, env) == want);
}

TEST_CASE("a loop re-runs only what depends on its variable", "[eval]") {
  const Expr i = fresh_bound(), j = fresh_bound();
  int once = 0, per_i = 0, per_j = 0;
  const ReadCapture capture = [&](std::uint32_t slot, std::span<const std::int32_t>) {
    ++(slot == 0 ? once : slot == 1 ? per_i : per_j);
    return 1.0;
  };
  const Expr body = plus(read(0, Type::I32, std::array{q}),
                         plus(read(1, Type::I32, std::array{i}), read(2, Type::I32, std::array{times(j, i)})));
  Env env;
  env.read = &capture;
  CHECK(eval(sum(i, 5, sum(j, 7, body)), env) == 105);
  CHECK(once == 1);
  CHECK(per_i == 5);
  CHECK(per_j == 35);
}

TEST_CASE("a Program evaluates many roots again and again in one Memory", "[eval]") {
  const std::array roots{plus(q, kv), q, times(plus(q, kv), q), integer(4)};
  const Program program(roots);
  Program::Memory memory(100, 7.0);
  for (int n = 0; n < 3; ++n) {
    Env env;
    env.q = n, env.kv = 10;
    program.run(env, memory);
    CHECK(program.result(0, memory) == n + 10);
    CHECK(program.result(1, memory) == n);
    CHECK(program.result(2, memory) == (n + 10) * n);
    CHECK(program.result(3, memory) == 4);
  }
}

TEST_CASE("a chain of 100 000 nodes is evaluated without a deep stack", "[eval]") {
  Expr e = q;
  for (int i = 0; i < 100'000; ++i) e = plus(e, integer(1));
  CHECK(eval(e, Env{}) == 100'000);
}

}  // namespace attune::ir

// tests/compiler/fold.test.cpp — terms that cancel along a row, scores affine in s, bounded scores, and none of these
#include "compiler/fold.h"

#include "compiler/lower.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;
using ir::Input;

namespace {

struct Shown {
  std::string core, row, scale, bias;
  bool bounded;
};

Shown folded(std::string_view score) {
  const Fold f = fold(expr(score), coordinate_bounds());
  // The parts of a split add up to the whole, for any origin.
  Setting at;
  for (const std::int32_t origin : {0, 5, 12, 1'000'000}) {
    at.env.origin = origin;
    CHECK(at(f.core) + at(f.row) == Approx(at(expr(score))).epsilon(1e-12).margin(1e-8));
    if (f.affine) CHECK(at(f.scale) * at.env.s + at(f.bias) == Approx(at(f.core)).epsilon(1e-12).margin(1e-8));
  }
  return {text(f.core), text(f.row), f.affine ? text(f.scale) : "", f.affine ? text(f.bias) : "", f.bounded()};
}

}  // namespace

TEST_CASE("a plain score is s, with nothing to add", "[fold]") {
  const Shown f = folded("s");
  CHECK(f.core == "s");
  CHECK(f.row == "0.0f");
  CHECK(f.scale == "1.0f");
  CHECK(f.bias == "0.0f");
  CHECK_FALSE(f.bounded);
}

TEST_CASE("alibi's query term cancels, and its key term is near an origin", "[fold]") {
  const Shown f = folded("s + slope[h] * f32(kv - q)");
  CHECK(f.core == "s + f32(kv - origin) * slope[h]");
  CHECK(f.row == "f32(origin - q) * slope[h]");
  CHECK(f.scale == "1.0f");
  CHECK(f.bias == "f32(kv - origin) * slope[h]");
}

TEST_CASE("alibi with its distance the other way round cancels as well", "[fold]") {
  const Shown f = folded("s - slope[h] * f32(q - kv)");
  CHECK(f.row != "0.0f");
  CHECK(f.row.find("kv") == std::string::npos);
  CHECK(f.core.find("q") == std::string::npos);
}

TEST_CASE("a term per head or per query cancels whole", "[fold]") {
  CHECK(folded("s + slope[h]").core == "s");
  CHECK(folded("s + slope[h]").row == "slope[h]");
  CHECK(folded("slope[q] + s + table[b] + bias[h, q]").core == "s");
  CHECK(folded("s - f32(q) * cap").core == "s");
}

TEST_CASE("a term per key does not cancel", "[fold]") {
  CHECK(folded("s + slope[kv]").row == "0.0f");
  CHECK(folded("s + slope[kv]").bias == "slope[kv]");
  CHECK(folded("s + table[clamp(q - kv, 0, 8)]").row == "0.0f");
}

TEST_CASE("factors of s gather in its scale", "[fold]") {
  CHECK(folded("2.0f * s").scale == "2.0f");
  CHECK(folded("(s + slope[kv]) * cap / 2.0f").scale == "cap * 0.5f");
  CHECK(folded("-s").scale == "-1.0f");
  CHECK(folded("s + s * slope[h]").scale == "1.0f + slope[h]");
  CHECK(folded("s / slope[q]").scale == "1.0f / slope[q]");
}

TEST_CASE("factors whose product leaves f32 do not gather", "[fold]") {
  for (const char* score : {"s / 1e-20f / 1e-20f", "s * 1e30f * -1e30f", "s * 1e-30f * 1e-30f", "s / 3e38f",
                            "-(1e30f * (s + slope[kv])) * 1e30f * 1e-30f"}) {
    INFO(score);
    CHECK(folded(score).scale.empty());
  }
  CHECK(folded("s * 1e30f * 1e8f").scale == "1e+30f * 1e+08f");
  CHECK_FALSE(folded("s / 1e30f * 1e30f").scale.empty());
  CHECK(folded("s * 0.0f").scale == "0.0f");
  CHECK(folded("s * cap * 1e30f").scale == "cap * 1e+30f");  // what a call gives is not known here
}

TEST_CASE("a choice is affine when both sides scale s alike", "[fold]") {
  CHECK(folded("where(kv <= q, s, s - 1.0f)").scale == "1.0f");
  CHECK(folded("where(kv <= q, s, 2.0f * s)").scale.empty());
  CHECK(folded("where(kv <= q, s, 0.0f)").scale.empty());  // 0 * s would let a NaN through
  CHECK(folded("where(s < 0.0f, s, s)").scale.empty());
}

TEST_CASE("what bends s is not affine, but a row's term beside it cancels", "[fold]") {
  for (const char* score : {"tanh(s)", "s * s", "cap / s", "abs(s)", "sum(i, 3, s * slope[i])", "max(s, 0.0f)"}) {
    INFO(score);
    CHECK(folded(score).scale.empty());
  }
  CHECK(folded("tanh(s) + slope[h]").row == "slope[h]");
}

TEST_CASE("a softcap by a literal is bounded, by a parameter it is not", "[fold]") {
  CHECK(folded("30.0f * tanh(s / 30.0f)").bounded);
  CHECK_FALSE(folded("cap * tanh(s / cap)").bounded);
  CHECK_FALSE(folded("50.0f * tanh(s / 50.0f)").bounded);  // 100 apart: a row could underflow
  CHECK(folded("clamp(s, -10.0f, 10.0f)").bounded);
  CHECK(folded("10.0f * sigmoid(s) + slope[h]").bounded);  // what cancels does not count
  const Fold f = fold(expr("30.0f * tanh(s / 30.0f)"));
  CHECK(f.range.lo == Approx(-30));
  CHECK(f.range.hi == Approx(30));
}

TEST_CASE("positions that could wrap in another order are not split", "[fold]") {
  CHECK(folded("s + f32(doc[kv] - q)").row == "0.0f");
  CHECK(folded("s + f32(q - (kv + kv + min(1, q)))").row == "0.0f");
  CHECK(folded("s + f32((kv - q) * 2)").row == "0.0f");
}

TEST_CASE("a row that is -inf is an empty row", "[fold]") {
  const Fold f = fold(expr("s + where(q < 3, -inf, 0.0f)"), coordinate_bounds());
  Setting at;
  at.env.q = 2;
  CHECK(at(f.row) == -HUGE_VAL);
  CHECK(at(f.core) == at.env.s);
}

TEST_CASE("a chain of 100 000 nodes folds without a deep stack", "[fold]") {
  ir::Expr e = ir::input(Input::S);
  for (int i = 0; i < 50'000; ++i) e = ir::op(ir::Op::Neg, ir::op(ir::Op::Add, e, ir::input(Input::S)));
  CHECK(fold(e).affine);
}

// tests/codegen/exponent.test.cpp — where the scale and log2(e) end up in the exponents of scores, as text
#include "codegen/facts/gpu_parts.h"

#include "compiler/fold.h"
#include "compiler/lower.h"
#include "tests/catch.h"
#include "tests/compiler/language.h"

namespace attune::tests {
namespace {

/// The exponent of a score as a kernel evaluates it. The last parameter, after the user's, is the call's scale.
std::string exponent(std::string_view score) {
  ir::Signature signature = names();
  signature.params.push_back({"scale", ir::Type::F32});
  const compiler::Fold fold = compiler::fold(expr(score), compiler::coordinate_bounds());
  const ir::Expr scale = ir::param(static_cast<std::uint32_t>(names().params.size()), ir::Type::F32);
  return ir::print(codegen::exponent(fold.core, scale), signature);
}

}  // namespace

TEST_CASE("one multiplication makes a scaled score a power of two", "[exponent]") {
  CHECK(exponent("s") == "s * (scale * 1.442695f)");
  CHECK(exponent("2.0f * s") == "s * (scale * 2.88539f)");
  CHECK(exponent("s / 4.0f") == "s * (scale * 0.36067376f)");
  CHECK(exponent("-s") == "s * -(scale * 1.442695f)");
  CHECK(exponent("s * exp(slope[h]) / cap") == "s * (scale * (exp(slope[h]) / cap * 1.442695f))");
}

TEST_CASE("a softcap multiplies once before and once after", "[exponent]") {
  CHECK(exponent("30.0f * tanh(s / 30.0f)") == "tanh(s * (scale * 0.033333335f)) * 43.28085f");
  CHECK(exponent("cap * tanh(s / cap)") == "tanh(s * (scale / cap)) * (cap * 1.442695f)");
}

TEST_CASE("terms take the factor where they vary least", "[exponent]") {
  CHECK(exponent("s + slope[h] * f32(kv - q)") ==
        "s * (scale * 1.442695f) + f32(kv - origin) * (slope[h] * 1.442695f)");
  CHECK(exponent("s + table[kv]") == "s * (scale * 1.442695f) + table[kv] * 1.442695f");
  CHECK(exponent("s * table[q] * slope[kv]") == "s * (table[q] * (scale * 1.442695f)) * slope[kv]");
  CHECK(exponent("kv <= q ? s : -inf") == "where(kv <= q, s * (scale * 1.442695f), -inf)");
}

TEST_CASE("a logarithm becomes that of two", "[exponent]") {
  CHECK(exponent("s - log(1.0f + f32(abs(q - kv)))") ==
        "s * (scale * 1.442695f) - log2(1.0f + abs(f32(q - origin) - f32(kv - origin)))");
}

TEST_CASE("what a choice hangs on keeps its rounding", "[exponent]") {
  CHECK(exponent("f32(q - kv) / 49.0f >= 1.0f ? s : 0.0f") ==
        "where(f32(q - kv) / 49.0f >= 1.0f, s * (scale * 1.442695f), 0.0f)");
  CHECK(exponent("s + floor(f32(q - kv) / 49.0f)") ==
        "s * (scale * 1.442695f) + floor(f32(q - kv) / 49.0f) * 1.442695f");
}

TEST_CASE("a shared expression is gathered once, however often it is used", "[exponent]") {
  ir::Expr e = ir::input(ir::Input::S);
  for (int i = 0; i < 60; ++i) e = ir::op(ir::Op::Mul, i % 2 ? ir::op(ir::Op::Tanh, e) : e, e);
  CHECK(ir::count(codegen::exponent(e, ir::param(0, ir::Type::F32))) < 5'000);
}

}  // namespace attune::tests

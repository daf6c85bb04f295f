// tests/compiler/lambdas.test.cpp — expressions as functions of C++ and Python, as a person would write them
#include "compiler/spell.h"

#include <attune/text.h>

#include "compiler/trace.h"
#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using compiler::Language;

namespace {

compiler::Mod score(const std::string& text) {
  static float memory[64];
  Text names;
  names.capture("slope", Tensor(memory, DType::f32, {8}))
      .capture("bias", Tensor(memory, DType::f32, {8, 8}))
      .capture("one", Tensor(memory, DType::f32, std::initializer_list<std::int64_t>{}))
      .capture("lambda", Tensor(memory, DType::f32, {4}))
      .param("cap", 30.0f)
      .param("W", 4);
  return compiler::trace({.score = names.score(text)}).mod;
}

std::string in(Language language, const std::string& text) {
  const compiler::Mod mod = score(text);
  return compiler::lambda(mod.score, "score", mod.signature(), language);
}

}  // namespace

TEST_CASE("functions of C++ and Python read as a person would write them", "[lambdas]") {
  std::string all;
  for (const char* text : {
           "s",
           "s + slope[h] * f32(kv - q)",
           "cap * tanh(s / cap)",
           "kv <= q && (q - kv < W || kv < 4) ? s : -inf",
           "q / W == kv / W && (q - kv) % 2 != 0 ? s * 0.5f : s",
           "s + bias[q, kv] + one[]",
           "s + sum(i, 8, slope[i] * sum(j, 8, bias[i, j]))",
           "(q & 3) + 1 == (kv >> 2 | 1) ? s : 2.0f",
           "(q < 3) == (kv < 5) ? s : 2.0f",
           "!(q < 3 || kv < 3) ? -s : min(s, 1.0f)",
           "s - (q - (kv - h)) * f32(b)",
           "let d = abs(q - kv) + 1; s / f32(d) + f32(d * d)",
           "random(7) < 0.5f ? s : nan",
           "floordiv(q, 2) == ~kv ? s : f32(q_len - kv_len)",
       }) {
    all += std::string(text) + "\n" + in(Language::cpp, text) + "\n" + in(Language::python, text) + "\n\n";
  }
  tests::golden("compiler/lambdas", all);
}

TEST_CASE("what no function can say stays text", "[lambdas]") {
  const std::string deep = [] {
    std::string out = "s";
    for (int i = 0; i < 100; ++i) out = "(" + out + ") * 0.5f + 1.0f";
    return out;
  }();
  for (const std::string& text : {std::string("s + 1.0f / 3.0f"), deep, std::string("s + lambda[h]")}) {
    INFO(text);
    REQUIRE(in(Language::cpp, text).empty());
    REQUIRE(in(Language::python, text).empty());
  }
}

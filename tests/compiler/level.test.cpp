// tests/compiler/level.test.cpp — what becomes a field per head, row or column, and what stays per element
#include "compiler/fold.h"

#include <array>

#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;

namespace {

std::string list(const std::vector<ir::Expr>& fields) {
  std::string out;
  for (const ir::Expr& e : fields) out += (out.empty() ? "" : "; ") + text(e);
  return out;
}

Levels levels(std::string_view of) { return level(std::array{expr(of)}); }

}  // namespace

TEST_CASE("an expression varies as its inputs do", "[level]") {
  CHECK(varies(expr("slope[h] * cap")) == Vary::Head);
  CHECK(varies(expr("kv_len - q_len + b")) == Vary::Head);
  CHECK(varies(expr("q * 2 + h")) == Vary::Row);
  CHECK(varies(expr("slope[kv]")) == Vary::Col);
  CHECK(varies(expr("q - kv")) == Vary::Element);
  CHECK(varies(expr("s")) == Vary::Element);
  CHECK(varies(expr("p")) == Vary::Element);
  CHECK(varies(expr("random(3)")) == Vary::Element);
  CHECK(varies(expr("f32(kept(3, 99))")) == Vary::Element);
}

TEST_CASE("the largest parts that vary less become fields", "[level]") {
  const Levels l = levels("s + slope[h] * f32(kv - q) * exp(table[q]) + sin(f32(kv))");
  CHECK(list(l.head) == "slope[h]");
  CHECK(list(l.row) == "exp(table[q])");
  CHECK(list(l.col) == "sin(f32(kv))");
  CHECK(list(l.element) == "s + head0 * f32(kv - q) * row0 + col0");
}

TEST_CASE("a row's field reads a head's", "[level]") {
  const Levels l = levels("s * (tanh(slope[h]) + f32(q))");
  CHECK(list(l.head) == "tanh(slope[h])");
  CHECK(list(l.row) == "head0 + f32(q)");
  CHECK(list(l.element) == "s * row0");
}

TEST_CASE("an expression that varies less is hoisted whole", "[level]") {
  const Levels l = levels("doc[q] > 3");
  CHECK(list(l.row) == "doc[q] > 3");
  CHECK(list(l.element) == "row0");
}

TEST_CASE("literals, inputs and parameters are no fields", "[level]") {
  const Levels l = levels("s * cap + f32(q + kv + b + width) * 2.0f");
  CHECK(list(l.head).find("cap") == std::string::npos);
  CHECK(list(levels("q").row).empty());
  CHECK(list(levels("true").head).empty());
  CHECK(list(levels("cap").element) == "cap");
}

TEST_CASE("equal parts of two expressions share a field", "[level]") {
  const Levels l = level(std::array{expr("s * exp(slope[h])"), expr("exp(slope[h]) < f32(kv - q)")});
  CHECK(list(l.head) == "exp(slope[h])");
  CHECK(list(l.element) == "s * head0; head0 < f32(kv - q)");
}

TEST_CASE("what a sum's variable stands in is not hoisted out of it", "[level]") {
  const Levels l = levels("s * sum(i, 3, slope[i] * table[kv - q + i])");
  CHECK(list(l.head).empty());
  CHECK(list(l.element) == "s * sum(i, 3, slope[i] * table[kv - q + i])");
}

TEST_CASE("a closed part of a sum's body is hoisted, and so is a sum that varies less", "[level]") {
  CHECK(list(levels("s * sum(i, 3, exp(slope[h]) * table[kv - q + i])").head) == "exp(slope[h])");
  const Levels l = levels("s * sum(i, 3, bias[q, i])");
  CHECK(list(l.row) == "sum(i, 3, bias[q, i])");
  CHECK(list(l.element) == "s * row0");
}

TEST_CASE("a chain of 100 000 nodes is split without a deep stack", "[level]") {
  ir::Expr e = ir::input(ir::Input::S);
  for (int i = 0; i < 50'000; ++i) e = ir::op(ir::Op::Add, ir::op(ir::Op::Neg, e), expr("slope[h]"));
  CHECK(level(std::array{e}).head.size() == 1);
}

// tests/compiler/text.test.cpp — names and lets of a Text, its Errors, and text that meets lambdas
#include <attune/text.h>

#include "compiler/lower.h"
#include "ir/eval.h"
#include "ir/print.h"
#include "tests/catch.h"
#include "tests/golden.h"

using namespace attune;
using namespace attune::compiler;
using tests::golden_error;

namespace {

float floats[64] = {};
const Tensor table(floats, DType::f32, {8}), other(floats + 8, DType::f32, {8});

std::string shown(const BoundMod& lowered, const ir::Expr& e) { return ir::print(e, lowered.mod.signature()); }

template <class F>
std::string message_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("lets are used in the order they are given", "[text]") {
  Text text;
  text.capture("t", table).let("near", "abs(q - kv) < 4").let("boost", "near ? t[h] : 0.0f");
  const BoundMod t = trace({.score = text.score("s + boost"), .mask = text.mask("near || kv == 0")});
  CHECK(shown(t, t.mod.score) == "s + where(abs(q - kv) < 4, t[h], 0.0f)");
  CHECK(shown(t, t.mod.mask) == "abs(q - kv) < 4 || kv == 0");
  CHECK(has(message_of([] { Text().let("a", "b1 + 1").let("b1", "2"); }), "b1"));
}

TEST_CASE("a let may read what its user may read, and the Error says which let it was", "[text]") {
  Text text;
  text.let("twice", "2.0f * s").let("deeper", "twice + 1.0f").let("doubled", "p * 2.0f");
  CHECK(shown(trace({.score = text.score("deeper")}), trace({.score = text.score("deeper")}).mod.score) ==
        "2.0f * s + 1.0f");
  golden_error("not-allowed-here.let", message_of([&] { text.mask("kv <= q && deeper > 0.0f", "--mask"); }));
  CHECK(has(message_of([&] { lower(Attention{.score = text.score("s + doubled")}); }), "`p`"));
  CHECK(has(message_of([&] { text.sink("deeper"); }), "`s`"));
  text.let("noise", "random(3)");
  golden_error("not-allowed-here.random-let", message_of([&] { text.sink("noise"); }));
}

TEST_CASE("a name stands for one thing, is spelled like one, and is not the language's", "[text]") {
  const auto code = [](auto f) {
    const std::string message = message_of(f);
    const std::size_t begin = message.find('[') + 1;
    return message.substr(begin, message.find(']') - begin);
  };
  CHECK(code([] { Text().capture("t", table).param("t", 1); }) == "name-taken");
  CHECK(code([] { Text().param("t", 1.0f).let("t", "1"); }) == "name-taken");
  CHECK(code([] { Text().let("t", "1").let("t", "2"); }) == "name-taken");
  CHECK(code([] { Text().capture("kv", table); }) == "reserved-name");
  CHECK(code([] { Text().param("tanh", 1.0f); }) == "reserved-name");
  CHECK(code([] { Text().let("true", "1"); }) == "reserved-name");
  CHECK(code([] { Text().let("2x", "1"); }) == "bad-name");
  CHECK(code([] { Text().capture("", table); }) == "bad-name");
  CHECK(code([] { Text().param("a b", 1); }) == "bad-name");
}

TEST_CASE("names added later change nothing that was made before", "[text]") {
  Text text;
  text.capture("t", table);
  const Score early = text.score("s + t[h]");
  text.capture("u", other);
  const BoundMod t = trace({.score = early});
  CHECK(t.mod.captures.size() == 1);
}

TEST_CASE("scores of text and lambdas compose, and share captures and parameters", "[text]") {
  Text text;
  text.capture("t", table).param("cap", 30.0f);
  const Capture<float> mine(table, "t");
  const Score lambda = [=](Float s, At at) { return s * mine[at.q]; };
  const BoundMod t = trace({.score = text.score("s + t[h]") | lambda | text.score("cap * tanh(s / cap)")});
  CHECK(t.mod.captures.size() == 1);
  CHECK(t.mod.params.size() == 1);
  CHECK(shown(t, t.mod.score) == "cap * tanh((s + t[h]) * t[q] / cap)");
}

TEST_CASE("text put upon a score with sums of its own captures no variable", "[text]") {
  Text text;
  text.capture("t", table);
  const Score inner = text.score("s + sum(i, 2, t[i])"),
              outer = text.score("sum(i, 3, s * t[i] + sum(j, 2, s + t[i + j]))");
  const BoundMod t = trace({.score = inner | outer});
  CHECK_FALSE(ir::verify(t.mod.score, t.mod.signature()));
  const ir::ReadCapture read = [](std::uint32_t, std::span<const std::int32_t> i) { return 1.0 + i[0]; };
  ir::Env env;
  env.s = 0.5;
  env.read = &read;
  const double s = 0.5 + 1 + 2;
  double expected = 0;
  for (int i = 0; i < 3; ++i) expected += s * (1 + i) + (s + 1 + i) + (s + 2 + i);
  CHECK(ir::eval(t.mod.score, env) == expected);
}

TEST_CASE("a node of text knows its text and its place in it", "[text]") {
  Text text;
  const BoundMod t = trace({.mask = text.mask("kv <= q  &&  q - kv < 7", "--mask")});
  const ir::Node& right = *t.mod.mask->args[1];
  REQUIRE(right.written.text);
  CHECK(right.written.text->name == "--mask");
  CHECK(has(right.written.text->body.substr(right.written.begin, right.written.end - right.written.begin), "<"));
}

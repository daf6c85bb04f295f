// tests/compiler/trace.test.cpp — slots in order of first use, names, lines, composition, and escaped values
#include "compiler/trace.h"

#include <array>
#include <optional>

#include "ir/print.h"
#include "tests/catch.h"

using namespace attune;
using namespace attune::compiler;

namespace {

std::string shown(const BoundMod& lowered, const ir::Expr& e) { return ir::print(e, lowered.mod.signature()); }

/// The Error that `f` throws: its code, or "none".
template <class F>
std::string code_of(F f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code;
  }
  return "none";
}

float floats[64] = {};
int ints[64] = {};
const Tensor slope_tensor(floats, DType::f32, {4}), bias_tensor(floats, DType::bf16, {4, 8}),
    doc_tensor(ints, DType::i32, {8});

}  // namespace

TEST_CASE("an empty Attention is s, p and every pair", "[trace]") {
  const BoundMod t = trace({});
  CHECK(shown(t, t.mod.score) == "s");
  CHECK(shown(t, t.mod.mask) == "true");
  CHECK(shown(t, t.mod.prob) == "p");
  CHECK_FALSE(t.mod.sink);
  CHECK(t.slots.captures.empty());
}

TEST_CASE("captures get slots in the order they are met, one for each tensor", "[trace]") {
  const Capture<float> slope(slope_tensor, "slope"), bias(bias_tensor, "bias");
  const Capture<int> doc(doc_tensor, "doc");
  const BoundMod t = trace(
      {.score = [=](Float s, At at) { return s + bias(at.q, at.kv) * slope[at.head] + slope[at.batch]; },
       .mask = [=](At at) { return doc[at.q] == doc[at.kv]; }});
  REQUIRE(t.mod.captures.size() == 3);
  CHECK(t.mod.captures ==
        std::vector<CaptureSlot>{{"bias", DType::bf16, 2}, {"slope", DType::f32, 1}, {"doc", DType::i32, 1}});
  CHECK(t.slots.captures == std::vector<Tensor>{bias_tensor, slope_tensor, doc_tensor});
  CHECK(shown(t, t.mod.score) == "s + bias[q, kv] * slope[h] + slope[b]");
}

TEST_CASE("two tensors of one name, and names the language needs, get names of their own", "[trace]") {
  const Capture<float> a(slope_tensor, "table"), b(Tensor(floats + 8, DType::f32, {4}), "table"),
      c(Tensor(floats + 16, DType::f32, {4}), "kv"), d(Tensor(floats + 24, DType::f32, {4}));
  const BoundMod t = trace({.score = [=](Float s, At at) { return s + a[at.q] + b[at.q] + c[at.q] + d[at.q]; }});
  CHECK(shown(t, t.mod.score) == "s + table[q] + table1[q] + t0[q] + t1[q]");
  CHECK(t.slots.asked == std::vector<std::string>{"table", "table", "kv", ""});
}

TEST_CASE("a parameter is one slot however often it is copied, and not part of the text's identity", "[trace]") {
  Param<float> cap("cap", 30);
  Param<int> width("width", 4);
  const auto make = [&] {
    return trace(
        {.score = [=](Float s, At) { return cap * tanh(s / cap); }, .mask = [=](At at) { return at.kv < width; }});
  };
  const BoundMod t = make();
  REQUIRE(t.mod.params.size() == 2);
  CHECK(shown(t, t.mod.score) == "cap * tanh(s / cap)");
  CHECK(shown(t, t.mod.mask) == "kv < width");
  cap = 50;
  CHECK(make().mod.digest() == t.mod.digest());
  CHECK(t.slots.params[0]->value == 50);
}

TEST_CASE("every node knows the line it was written on", "[trace]") {
  const int line = __LINE__ + 2;
  const BoundMod t = trace({.score = [](Float s, At at) {
    const Float scaled = s * 2.0f;
    const Float bent = tanh(f32(at.kv));
    return scaled + bent;
  }});
  const ir::Node& sum = *t.mod.score;
  REQUIRE(sum.op == ir::Op::Add);
  CHECK(std::string(sum.written.file) == __FILE__);
  CHECK(sum.args[0]->written.line == static_cast<std::uint32_t>(line));
  CHECK(sum.args[1]->written.line == static_cast<std::uint32_t>(line + 1));
  CHECK(sum.args[1]->args[0]->written.line == static_cast<std::uint32_t>(line + 1));
  CHECK(sum.written.line == static_cast<std::uint32_t>(line + 2));
}

TEST_CASE("scores compose from left to right, and so do prob mods", "[trace]") {
  const Score twice = [](Float s, At) { return s * 2.0f; }, more = [](Float s, At) { return s + 1.0f; };
  const Prob half = [](Float p, At) { return p * 0.5f; }, less = [](Float p, At) { return p - 1.0f; };
  const BoundMod t = trace({.score = twice | more | twice, .prob = half | less});
  CHECK(shown(t, t.mod.score) == "(s * 2.0f + 1.0f) * 2.0f");
  CHECK(shown(t, t.mod.prob) == "p * 0.5f - 1.0f");
  CHECK(shown(t, trace({.score = Score() | more}).mod.score) == "s + 1.0f");
}

TEST_CASE("masks compose with && || and !, and an empty mask is true", "[trace]") {
  const Mask causal = [](At at) { return at.kv <= at.q; }, first = [](At at) { return at.kv < 4; };
  const auto mask = [](const Mask& m) {
    const BoundMod t = trace({.mask = m});
    return shown(t, t.mod.mask);
  };
  CHECK(mask(causal && !first) == "kv <= q && !(kv < 4)");
  CHECK(mask(causal || (first && causal)) == "kv <= q || kv < 4 && kv <= q");
  CHECK(mask(Mask() && causal) == "true && kv <= q");
}

TEST_CASE("a sum's variable is its own, also when sums nest and share a body", "[trace]") {
  const Capture<float> bias(bias_tensor, "bias");
  const BoundMod t = trace({.score = [=](Float s, At at) {
    const auto row = [=](Int i) { return sum(3, [=](Int j) { return bias(i, j) * bias(j, i); }); };
    return s + sum(2, [=](Int i) { return row(i) + row(at.q); });
  }});
  CHECK_FALSE(ir::verify(t.mod.score, t.mod.signature()));
  CHECK(t.mod.score->free == 0);
}

TEST_CASE("the variable of a sum may not leave its body", "[trace]") {
  CHECK(code_of([] {
          trace({.score = [](Float s, At) {
            std::optional<Int> kept;
            const Float total = sum(3, [&](Int i) {
              kept = i;
              return f32(i);
            });
            return s + total + f32(*kept);
          }});
        }) == "escaped-variable");
}

TEST_CASE("captures and parameters have values only while an Attention is traced", "[trace]") {
  const Capture<float> slope(slope_tensor, "slope");
  const Param<float> cap("cap", 30);
  CHECK(code_of([&] { (void)slope[Int(3)]; }) == "outside-trace");
  CHECK(code_of([&] { const Float value = cap; }) == "outside-trace");
}

TEST_CASE("what cannot be in the language is refused where it is written", "[trace]") {
  const Capture<float> slope(slope_tensor, "slope");
  CHECK(code_of([&] { trace({.score = [=](Float s, At at) { return s + slope(at.q, at.kv); }}); }) == "wrong-rank");
  CHECK(code_of([] { trace({.score = [](Float s, At) { return s + sum(1025, [](Int i) { return f32(i); }); }}); }) ==
        "bad-sum");
  CHECK(code_of([] { trace({.score = [](Float s, At) { return s + sum(-1, [](Int i) { return f32(i); }); }}); }) ==
        "bad-sum");
  CHECK(code_of([] { trace({.mask = [](At at) { return at.q < 3'000'000'000; }}); }) == "bad-number");
}

TEST_CASE("an Error thrown in a lambda leaves no trace under way", "[trace]") {
  const Capture<float> slope(slope_tensor, "slope");
  CHECK(code_of([] { trace({.score = [](Float, At) -> Float { throw Error("mine", "x", {}, "y", "z"); }}); }) ==
        "mine");
  CHECK(code_of([&] { (void)slope[Int(3)]; }) == "outside-trace");
}

TEST_CASE("an Attention may be traced within the trace of another", "[trace]") {
  const Capture<float> slope(slope_tensor, "slope"), other(Tensor(floats + 8, DType::f32, {4}), "other");
  const BoundMod t = trace({.score = [=](Float s, At at) {
    const BoundMod inner = trace({.score = [=](Float x, At there) { return x + other[there.q]; }});
    CHECK(inner.mod.captures[0].name == "other");
    return s + slope[at.q];
  }});
  REQUIRE(t.mod.captures.size() == 1);
  CHECK(t.mod.captures[0].name == "slope");
}

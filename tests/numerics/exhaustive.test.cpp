// tests/numerics/exhaustive.test.cpp — every element of every gradient, over the shapes a call may have
#include "tests/numerics/exhaustive.h"

#include "tests/catch.h"

using namespace attune;
using namespace attune::tests;

namespace {

const Device host = Device::cpu();

Array<double> table(std::initializer_list<std::int64_t> shape, const char* name) {
  auto out = host.array<double>(shape, name);
  std::mt19937 random(7);
  randomise(out, random);
  return out;
}

}  // namespace

TEST_CASE("plain attention has the gradients that differences give, whatever its shape", "[exhaustive]") {
  const Sizes sizes = GENERATE(
      Sizes{}, Sizes{.hq = 1, .hkv = 1, .sq = 1, .skv = 1, .d = 1, .dv = 1}, Sizes{.hq = 3, .hkv = 1},
      Sizes{.hq = 5, .hkv = 1, .sq = 2, .skv = 2}, Sizes{.hq = 14, .hkv = 2, .sq = 2, .skv = 2},
      Sizes{.b = 2, .hq = 4, .hkv = 2}, Sizes{.b = 2, .kv_shared = true}, Sizes{.sq = 5, .skv = 2},
      Sizes{.hq = 2, .hkv = 1, .q_lens = {2, 0, 3}, .kv_lens = {3, 2, 1}}, Sizes{.q_lens = {2, 1}, .kv_lens = {0, 2}});
  CHECK(Exhaustive({}, sizes).disagreements() == "");
  CHECK(Exhaustive({.mask = mods::causal(), .scale = -0.7}, sizes).disagreements() == "");
}

TEST_CASE("scores have the gradients that differences give", "[exhaustive]") {
  const auto slope = table({2}, "slope");
  const auto bias = table({3, 4}, "bias");
  const auto relative = table({2, 8}, "relative");
  CHECK(Exhaustive({.score = mods::alibi(slope)}, {}).disagreements({slope}) == "");
  CHECK(Exhaustive({.score = mods::softcap(1.5)}, {}).disagreements() == "");
  CHECK(
      Exhaustive({.score = mods::alibi(slope) | mods::softcap(2), .mask = mods::causal()}, {}).disagreements({slope}) ==
      "");
  CHECK(Exhaustive({.score = mods::dense_bias(bias)}, {}).disagreements({bias}) == "");
  CHECK(Exhaustive({.score = mods::relative_bias(relative, 4)}, {.b = 2}).disagreements({relative}) == "");
  CHECK(Exhaustive({.score = [](Float s, At) { return s * sigmoid(s); }}, {}).disagreements() == "");
  CHECK(Exhaustive({.score = [=](Float s, At at) { return s * slope[at.head] + slope[at.head] * slope[0]; }}, {})
            .disagreements({slope}) == "");
}

TEST_CASE("an index out of its tensor scatters to where the read was clamped", "[exhaustive]") {
  const auto near = table({2}, "near");
  CHECK(Exhaustive({.score = [=](Float s, At at) { return s + near[at.q - at.kv]; }}, {}).disagreements({near}) == "");
}

TEST_CASE("captured reads within sums have the gradients that differences give", "[exhaustive]") {
  const auto left = table({4, 3}, "left");
  const auto right = table({4, 3}, "right");
  const Score low_rank = [=](Float s, At at) {
    return s + sum(3, [&](Int i) { return left(at.q, i) * right(at.kv, i); });
  };
  const Score nested = [=](Float s, At at) {
    return s + sum(3, [&](Int i) { return sum(2, [&](Int j) { return left(at.q, i) * right(j, i) * f32(j + 1); }); });
  };
  CHECK(Exhaustive({.score = low_rank}, {}).disagreements({left, right}) == "");
  CHECK(Exhaustive({.score = nested}, {}).disagreements({left, right}) == "");
}

TEST_CASE("prob mods and sinks have the gradients that differences give", "[exhaustive]") {
  const auto gate = table({2}, "gate");
  const auto sink = table({2}, "sink");
  CHECK(Exhaustive({.prob = mods::head_gate(gate)}, {}).disagreements({gate}) == "");
  CHECK(Exhaustive({.prob = mods::dropout(0.6, 3)}, {.sq = 6}).disagreements() == "");
  CHECK(Exhaustive({.prob = [](Float p, At) { return p * p; }, .sink = mods::learned_sink(sink)}, {})
            .disagreements({sink}) == "");
  CHECK(
      Exhaustive({.mask = mods::causal(), .sink = mods::learned_sink(sink)}, {.b = 2, .sq = 5}).disagreements({sink}) ==
      "");
  // Rows that keep nothing: only the sink remains, and its gradient is that of lse.
  CHECK(Exhaustive({.mask = [](At at) { return at.q > 0; }, .sink = mods::learned_sink(sink)}, {})
            .disagreements({sink}) == "");
}

TEST_CASE("one tensor under two names gathers the gradients of both", "[exhaustive]") {
  const auto bias = table({4}, "bias");
  Text text;
  text.capture("t", bias).capture("u", bias);
  CHECK(Exhaustive({.score = text.score("s * t[kv] + u[q]"), .mask = text.mask("kv <= q + 1")}, {})
            .disagreements({bias}) == "");
}

TEST_CASE("a wrong gradient is noticed", "[exhaustive]") {
  const Score wrong = [](Float s, At) { return custom(2 * s, 2.001f); };
  CHECK(Exhaustive({.score = wrong}, {}).disagreements() != "");
}

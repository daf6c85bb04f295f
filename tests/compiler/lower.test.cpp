// tests/compiler/lower.test.cpp — the steps in order, what they log, every expression sound after them, on many threads
#include "compiler/lower.h"

#include <atomic>
#include <thread>

#include "tests/catch.h"
#include "tests/compiler/language.h"

using namespace attune;
using namespace attune::compiler;
using namespace attune::tests;

namespace {

float floats[64] = {};

Attention example(int salt = 0) {
  const Capture<float> slope(Tensor(floats, DType::f32, {16}), "slope");
  return {.score = [=](Float s, At at) { return 30.0f * tanh((s + slope[at.head] * (at.kv - at.q) + salt) / 30.0f); },
          .mask = [=](At at) { return at.q - at.kv >= 0 && at.kv >= salt; },
          .prob = [](Float p, At) { return p * 2.0f; },
          .sink = [=](SinkAt at) { return slope[at.head]; }};
}

void check_sound(const Mod& mod) {
  const auto sound = [&](const ir::Expr& e) { CHECK(ir::verify(e, mod.signature()).value_or("") == ""); };
  for (const ir::Expr& e : {mod.score, mod.mask, mod.prob, mod.dscore.by, mod.dprob.by, mod.fold.core, mod.fold.row})
    sound(e);
  if (mod.sink) sound(mod.sink);
  for (const auto* fields : {&mod.levels.head, &mod.levels.row, &mod.levels.col, &mod.levels.element})
    for (const ir::Expr& e : *fields) sound(e);
  for (const Derivative* d : {&mod.dscore, &mod.dprob, &mod.dsink})
    for (const Scatter& s : d->captures) {
      std::uint32_t open = s.value->free;
      for (const ir::Expr& e : s.index) open |= e->free;
      for (const Scatter::Loop& loop : s.loops) open &= ~(1u << (loop.binder - 1));
      CHECK(open == 0);
    }
}

}  // namespace

TEST_CASE("an Attention is lowered, checked, simplified, derived, folded, levelled and covered, in this order",
          "[lower]") {
  Steps steps;
  steps.keep_text = true;
  const LoweredMod t = lower(example(), &steps);
  std::string order;
  for (const Steps::Step& step : steps.steps) order += step.name + " ";
  CHECK(order == "trace check simplify derive fold level cover ");
  CHECK(steps.steps[0].text.find("q - kv >= 0") != std::string::npos);
  CHECK(steps.steps[2].text.find("kv <= q") != std::string::npos);
  CHECK(steps.steps[1].text.empty());  // checking changes nothing
  check_sound(t.mod);
}

TEST_CASE("every rewrite of what the user wrote is logged, and none of what was derived", "[lower]") {
  Steps steps;
  lower(example(), &steps);
  bool comparison = false;
  for (const Rewrite& r : steps.rewrites) {
    comparison |= r.rule == "i - j >= 0 -> j <= i";
    CHECK_FALSE(ir::same(r.from, r.to));
  }
  CHECK(comparison);
  CHECK(steps.rewrites.size() < 8);
}

TEST_CASE("lowering gives the same with and without a log", "[lower]") {
  Steps steps;
  CHECK(lower(example()).mod.digest() == lower(example(), &steps).mod.digest());
}

TEST_CASE("a lowered Mod is lowered to itself", "[lower]") {
  const Mod once = lower(example()).mod, twice = lower(BoundMod{once, {}}).mod;
  CHECK(once.digest() == twice.digest());
  CHECK(ir::same(once.dscore.by, twice.dscore.by));
  CHECK(ir::same(once.fold.core, twice.fold.core));
}

TEST_CASE("what reads an input that its place does not have is refused", "[lower]") {
  Mod mod;
  mod.score = expr("s + p");
  mod.mask = expr("true");
  mod.prob = expr("p");
  CHECK_THROWS_AS(lower(BoundMod{mod, {}}), Error);
}

TEST_CASE("the tensors that a score reads along the keys of a row, and kernels may copy, are known by their slots",
          "[lower]") {
  using Slots = std::vector<std::uint32_t>;
  const auto dense = [](const std::string& score, DType type = DType::f32) {
    Mod mod;
    mod.score = expr(score);
    mod.mask = expr("true");
    mod.prob = expr("p");
    for (const ir::Signature::Capture& c : names().captures)
      mod.captures.push_back({c.name, c.type == ir::Type::F32 ? type : DType::i32, c.rank});
    return lower(BoundMod{mod, {}}).dense;
  };
  CHECK(dense("s + bias[q, kv]") == Slots{2});
  CHECK(dense("s * table[q - kv] + bias[doc[q] + h, kv] * slope[h]") == Slots{2});
  CHECK(dense("s + bias[q, kv] + bias[q + 1, kv]") == Slots{2});
  CHECK(dense("s + bias[q, kv] + bias[q + 1, kv]", DType::bf16) == Slots{2, 2});
  for (const std::string score : {"s", "s + slope[h]", "s + table[kv]", "s + bias[h, kv]", "s + bias[kv, q]",
                                  "s + bias[q, kv + 1]", "s + bias[kv - q, kv]", "s + bias[i32(s), kv]"})
    CHECK(dense(score).empty());
}

TEST_CASE("large Mods are lowered: 60 squares, 100 000 nodes upon each other, a shared value under a division",
          "[lower]") {
  const LoweredMod squares = lower(Attention{.score = [](Float s, At) {
    for (int i = 0; i < 60; ++i) s = s * s;
    return s / 3.0f;
  }});
  CHECK(ir::count(squares.mod.dscore.by) < 400);
  const LoweredMod deep = lower(Attention{.score = [](Float s, At at) {
    for (int i = 0; i < 33'000; ++i) s = s * (i % 2 == 0 ? 0.5f : 2.0f) + f32(at.kv);
    return s;
  }});
  CHECK(deep.mod.fold.affine);
}

TEST_CASE("eight threads lower equal and different mods to what one thread makes of them", "[lower][threads]") {
  constexpr int threads = 8, rounds = 20;
  std::vector<ir::Digest> alone;
  for (int i = 0; i < rounds; ++i) alone.push_back(lower(example(i % 4)).mod.digest());
  std::atomic<int> wrong = 0;
  const Attention shared = example(1);
  const ir::Digest of_shared = lower(shared).mod.digest();
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      for (int i = 0; i < rounds; ++i) {
        const int salt = t % 2 ? i : rounds - 1 - i;
        wrong += lower(example(salt % 4)).mod.digest() != alone[static_cast<std::size_t>(salt)];
        wrong += lower(shared).mod.digest() != of_shared;
      }
    });
  for (std::thread& thread : all) thread.join();
  CHECK(wrong == 0);
}

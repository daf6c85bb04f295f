// tests/numerics/gradients.test.cpp — the oracle's backward against central differences, over the corpus
#include "tests/catch.h"
#include "tests/numerics/corpus.h"
#include "tests/numerics/differences.h"

using namespace attune;

namespace {

// Differences with step 1e-6 in f64 are accurate to about 1e-9 of the loss, which is near 10.
constexpr double tolerance = 1e-6;

void agree(const tests::CorpusMod& mod, const tests::DifferenceCase& at) {
  const tests::Made made = tests::make(mod, at.seed, DType::f64);
  for (const auto& [tensor, error] : tests::gradient_errors(made.attention, made.captures, at)) {
    INFO("mod " << mod.name << ", gradient of " << tensor << ", seed " << at.seed);
    CHECK(error <= tolerance);
  }
}

// Each takes a quarter of the corpus, so that ctest runs them in parallel.
void quarter(std::size_t which) {
  const auto& corpus = tests::corpus();
  for (std::size_t i = which; i < corpus.size(); i += 4)
    if (corpus[i].smooth) agree(corpus[i], {.seed = 10 + i});
}

}  // namespace

TEST_CASE("gradients agree with differences: first quarter of the corpus", "[gradients]") { quarter(0); }
TEST_CASE("gradients agree with differences: second quarter of the corpus", "[gradients]") { quarter(1); }
TEST_CASE("gradients agree with differences: third quarter of the corpus", "[gradients]") { quarter(2); }
TEST_CASE("gradients agree with differences: last quarter of the corpus", "[gradients]") { quarter(3); }

TEST_CASE("gradients agree with differences for any ratio of heads, offsets and odd sizes", "[gradients]") {
  const tests::CorpusMod* everything = nullptr;
  const tests::CorpusMod* table = nullptr;
  for (const tests::CorpusMod& mod : tests::corpus()) {
    if (mod.name == "everything") everything = &mod;
    if (mod.name == "relative_table") table = &mod;
  }
  REQUIRE(everything);
  REQUIRE(table);
  for (const std::int64_t kv_heads : {1, 2, 4}) agree(*everything, {.kv_heads = kv_heads, .dv = 7});
  agree(*everything, {.batch = 1, .q_len = 1, .kv_len = 1, .d = 1, .dv = 1});
  agree(*table, {.q_len = 3, .kv_len = 17, .d = 5, .dv = 2, .q_offset = 11});
  agree(*table, {.kv_heads = 4, .q_len = 19, .kv_len = 1, .with_lse = false});
}

TEST_CASE("a straight-through score has the derivative it was given", "[gradients]") {
  // custom(round(4 s) / 4, 1): the gradient of q is that of the plain score at the rounded value.
  Text text;
  const auto cpu = Device::cpu();
  auto q = cpu.array<double>({1, 1, 1, 1}), k = cpu.array<double>({1, 1, 2, 1}), v = cpu.array<double>({1, 1, 2, 1});
  auto grad_o = cpu.array<double>({1, 1, 1, 1}), dq = cpu.array<double>({1, 1, 1, 1});
  q.values()[0] = 1;
  k.values()[0] = 0.3;
  k.values()[1] = 0.9;
  v.values()[0] = 0;
  v.values()[1] = 1;
  grad_o.values()[0] = 1;
  const Attention through{
      .score = text.score("custom(round(4.0f * s) / 4.0f, 1.0f)"), .scale = 1, .target = Target::oracle};
  through.backward({.q = q, .k = k, .v = v, .grad_o = grad_o, .dq = dq});
  // s' = {0.25, 1}; p1 = 1 / (1 + e^-0.75); dq = p1 (1 - p1) (k1 - k0).
  const double p1 = 1 / (1 + std::exp(-0.75));
  CHECK(dq.values()[0] == Approx(p1 * (1 - p1) * 0.6).epsilon(1e-14));
}

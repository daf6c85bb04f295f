// tests/codegen/peak.test.cpp — where the part of a score that does not depend on s is largest

#include "codegen/facts/gpu_parts.h"
#include "compiler/lower.h"
#include "tests/catch.h"
#include "tests/numerics/corpus.h"

namespace attune::tests {
namespace {

const std::vector<CorpusCapture> captures{
    {"slope", DType::f32, {4}}, {"bias", DType::f32, {28}}, {"dense", DType::f32, {24, 28}}, {"row", DType::f32, {24}}};

Peak peak_of(const std::string& score, const codegen::Wanted* wanted = nullptr) {
  const Made made = make({.name = "peak", .score = score, .captures = captures}, 1);
  const compiler::LoweredMod lowered = compiler::lower(made.attention);
  const codegen::GpuParts parts = codegen::gpu_parts(lowered, true, wanted);
  CHECK((parts.term != nullptr) == (parts.facts.peak != Peak::unknown));
  return parts.facts.peak;
}

}  // namespace

TEST_CASE("a bias that rises or falls along keys is largest at an end of a tile", "[peak]") {
  for (const char* score : {"s + slope[h] * f32(kv - q)", "s - f32(kv)", "slope[h] * f32(kv) + s / 2.0f",
                            "20.0f * tanh(s / 20.0f) + log(1.0f + f32(kv))", "s + max(f32(kv - q), -8.0f)"}) {
    INFO(score);
    CHECK(peak_of(score) == Peak::ends);
  }
}

TEST_CASE("a bias by how far q and kv are apart may be largest where they meet", "[peak]") {
  for (const char* score : {"s - slope[h] * f32(abs(kv - q))", "s - log(1.0f + f32(abs(q - kv)))"}) {
    INFO(score);
    CHECK(peak_of(score) == Peak::diagonal);
  }
}

TEST_CASE("a bias by key may be largest anywhere", "[peak]") {
  for (const char* score :
       {"s + bias[kv]", "s + (kv < 9 ? -inf : bias[kv])", "s + sin(f32(kv))", "s + bias[kv] + slope[h] * f32(kv)"}) {
    INFO(score);
    CHECK(peak_of(score) == Peak::columns);
  }
}

TEST_CASE("nothing is known of other scores", "[peak]") {
  for (const char* score :
       {"s", "s * slope[h]", "s + row[q]", "s * bias[kv]", "tanh(s + bias[kv])", "s + dense[q, kv]", "s + random(1)"}) {
    INFO(score);
    CHECK(peak_of(score) == Peak::unknown);
  }
  const codegen::Wanted none(captures.size());
  CHECK(peak_of("s + bias[kv]", &none) == Peak::unknown);
}

}  // namespace attune::tests

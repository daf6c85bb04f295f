// tests/numerics/mods.test.cpp — every mod of the corpus and every mask, on every engine, forward and backward
#include <attune/attune.h>

#include "tests/catch.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/corpus.h"
#include "tests/numerics/masks.h"

using namespace attune;
using tests::Compared, tests::CorpusMod, tests::Shape;

namespace {

void agree(const CorpusMod& mod, const Shape& shape, const Compared& what) {
  const std::string wrong = tests::disagreement(tests::make(mod, shape.seed).attention, shape, what);
  INFO(mod.name << "\n" << wrong);
  CHECK(wrong.empty());
}

// Within one tile of keys; and several tiles of both, where what a capture does not hold is its last element.
Shape small(DType dtype, std::uint64_t seed) { return {.dtype = dtype, .seed = seed}; }
Shape wide(DType dtype, std::uint64_t seed) {
  return {.batch = 1, .kv_heads = 1, .q_len = 67, .kv_len = 150, .d = 8, .dv = 5, .dtype = dtype, .seed = seed};
}
// As many as the masks' captures hold.
Shape masked(std::uint64_t seed) { return {.kv_heads = 4, .q_len = 100, .kv_len = 120, .d = 4, .dv = 4, .seed = seed}; }

/// A half each, so that ctest runs them side by side.
void half(std::size_t which, Shape (*shape)(DType, std::uint64_t), DType dtype, const Compared& what) {
  const auto& mods = tests::corpus();
  for (std::size_t i = which; i < mods.size(); i += 2) agree(mods[i], shape(dtype, 100 + i), what);
}

constexpr Compared forward{.backward = false}, backward{.forward = false};

}  // namespace

TEST_CASE("every engine computes every mod forward: f32, first half", "[engine]") {
  half(0, small, DType::f32, forward);
}
TEST_CASE("every engine computes every mod forward: f32, last half", "[engine]") {
  half(1, small, DType::f32, forward);
}
TEST_CASE("every engine computes every mod forward: bf16, first half", "[engine]") {
  half(0, small, DType::bf16, forward);
}
TEST_CASE("every engine computes every mod forward: bf16, last half", "[engine]") {
  half(1, small, DType::bf16, forward);
}
TEST_CASE("every engine computes every mod forward over several tiles: first half", "[engine]") {
  half(0, wide, DType::f32, forward);
}
TEST_CASE("every engine computes every mod forward over several tiles: last half", "[engine]") {
  half(1, wide, DType::f32, forward);
}

TEST_CASE("every engine computes every mod backward: f32, first half", "[engine]") {
  half(0, small, DType::f32, backward);
}
TEST_CASE("every engine computes every mod backward: f32, last half", "[engine]") {
  half(1, small, DType::f32, backward);
}
TEST_CASE("every engine computes every mod backward: bf16, first half", "[engine]") {
  half(0, small, DType::bf16, backward);
}
TEST_CASE("every engine computes every mod backward: bf16, last half", "[engine]") {
  half(1, small, DType::bf16, backward);
}
TEST_CASE("every engine computes every mod backward over several tiles: first half", "[engine]") {
  half(0, wide, DType::f32, backward);
}
TEST_CASE("every engine computes every mod backward over several tiles: last half", "[engine]") {
  half(1, wide, DType::f32, backward);
}

TEST_CASE("every engine computes some mods in f16", "[engine]") {
  const auto& mods = tests::corpus();
  for (std::size_t i = 0; i < mods.size(); i += 9) agree(mods[i], small(DType::f16, 300 + i), {});
}

TEST_CASE("every engine computes every mask forward: first half", "[engine]") {
  for (std::size_t i = 0; i < tests::masks().size(); i += 2) agree(tests::masks()[i].mod, masked(200 + i), forward);
}
TEST_CASE("every engine computes every mask forward: last half", "[engine]") {
  for (std::size_t i = 1; i < tests::masks().size(); i += 2) agree(tests::masks()[i].mod, masked(200 + i), forward);
}
TEST_CASE("every engine computes every mask backward: first half", "[engine]") {
  for (std::size_t i = 0; i < tests::masks().size(); i += 2) agree(tests::masks()[i].mod, masked(200 + i), backward);
}
TEST_CASE("every engine computes every mask backward: last half", "[engine]") {
  for (std::size_t i = 1; i < tests::masks().size(); i += 2) agree(tests::masks()[i].mod, masked(200 + i), backward);
}

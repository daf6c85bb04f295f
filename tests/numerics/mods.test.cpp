// tests/numerics/mods.test.cpp — every mod of the corpus and every mask, on every engine, forward and backward
#include <attune/attune.h>

#include "tests/catch.h"
#include "tests/numerics/agree.h"
#include "tests/numerics/corpus.h"
#include "tests/numerics/masks.h"
#include "tests/sanitizers.h"

using namespace attune;
using tests::Compared, tests::CorpusMod, tests::Shape;

namespace {

void agree(const CorpusMod& mod, const Shape& shape, const Compared& what) {
  const std::string wrong = tests::disagreement(tests::make(mod, shape.seed).attention, shape, what);
  INFO(mod.name << "\n" << wrong);
  CHECK(wrong.empty());
}

// `small` fits into one tile of keys. `offsets64` has several tiles of both, where indices beyond a capture read its
// last element.
Shape small(DType dtype, std::uint64_t seed) { return {.dtype = dtype, .seed = seed}; }
Shape wide(DType dtype, std::uint64_t seed) {
  return {.batch = 1, .kv_heads = 1, .q_len = 67, .kv_len = 150, .d = 8, .dv = 5, .dtype = dtype, .seed = seed};
}
// The sizes that the masks' captures hold.
Shape masked(std::uint64_t seed) { return {.kv_heads = 4, .q_len = 100, .kv_len = 120, .d = 4, .dv = 4, .seed = seed}; }

const Compared forward{.backward = false}, backward{.forward = false};

/// Every second one below `count`, so that ctest runs the halves in parallel. A run takes a share of them, of each
/// suite of mods another one.
std::vector<std::size_t> half(std::size_t which, std::size_t count, std::size_t suite) {
  std::vector<std::size_t> out;
  for (std::size_t i = which; i < count; i += 2)
    if (tests::runs_case(i / 2 + suite, 5)) out.push_back(i);
  return out;
}
void every_mod(std::size_t which, Shape (*shape)(DType, std::uint64_t), DType dtype, const Compared& what,
               std::size_t suite) {
  const auto& all = tests::corpus();
  for (const std::size_t i : half(which, all.size(), suite)) agree(all[i], shape(dtype, 100 + i), what);
}
void every_mask(std::size_t which, const Compared& what) {
  const auto& all = tests::masks();
  for (const std::size_t i : half(which, all.size(), 0)) agree(all[i].mod, masked(200 + i), what);
}

}  // namespace

TEST_CASE("every engine computes every mod forward: f32, first half", "[engine]") {
  every_mod(0, small, DType::f32, forward, 0);
}
TEST_CASE("every engine computes every mod forward: f32, last half", "[engine]") {
  every_mod(1, small, DType::f32, forward, 0);
}
TEST_CASE("every engine computes every mod forward: bf16, first half", "[engine]") {
  every_mod(0, small, DType::bf16, forward, 1);
}
TEST_CASE("every engine computes every mod forward: bf16, last half", "[engine]") {
  every_mod(1, small, DType::bf16, forward, 1);
}
TEST_CASE("every engine computes every mod forward over several tiles: first half", "[engine]") {
  every_mod(0, wide, DType::f32, forward, 2);
}
TEST_CASE("every engine computes every mod forward over several tiles: last half", "[engine]") {
  every_mod(1, wide, DType::f32, forward, 2);
}

TEST_CASE("every engine computes every mod backward: f32, first half", "[engine]") {
  every_mod(0, small, DType::f32, backward, 0);
}
TEST_CASE("every engine computes every mod backward: f32, last half", "[engine]") {
  every_mod(1, small, DType::f32, backward, 0);
}
TEST_CASE("every engine computes every mod backward: bf16, first half", "[engine]") {
  every_mod(0, small, DType::bf16, backward, 1);
}
TEST_CASE("every engine computes every mod backward: bf16, last half", "[engine]") {
  every_mod(1, small, DType::bf16, backward, 1);
}
TEST_CASE("every engine computes every mod backward over several tiles: first half", "[engine]") {
  every_mod(0, wide, DType::f32, backward, 2);
}
TEST_CASE("every engine computes every mod backward over several tiles: last half", "[engine]") {
  every_mod(1, wide, DType::f32, backward, 2);
}

TEST_CASE("every engine computes some mods in f16", "[engine]") {
  const auto& mods = tests::corpus();
  for (std::size_t i = 0; i < mods.size(); i += 9) agree(mods[i], small(DType::f16, 300 + i), {});
  // Powers below the bound instead of the row's maximum would be 0 in f16.
  agree({.name = "softcap of 30", .score = "30.0f * tanh(s / 30.0f)"}, small(DType::f16, 400), {});
}

TEST_CASE("every engine computes every mask forward: first half", "[engine]") { every_mask(0, forward); }
TEST_CASE("every engine computes every mask forward: last half", "[engine]") { every_mask(1, forward); }
TEST_CASE("every engine computes every mask backward: first half", "[engine]") { every_mask(0, backward); }
TEST_CASE("every engine computes every mask backward: last half", "[engine]") { every_mask(1, backward); }

// tests/fuzz/engine.fuzz.cpp — random mods through whole engines at random small shapes, against the oracle
#include "tests/catch.h"
#include "tests/fuzz/random_call.h"

namespace attune::tests {
namespace {

void run(std::uint64_t count, const Compared& what) {
  const auto& all = engines();
  if (all.empty()) return;
  Tally tally;
  // One instruction set per case, because each one is compiled. Every fourth seed is hostile.
  for (const std::uint64_t seed : seeds_in_turn(count)) {
    RandomCall call(seed);
    if (!what.backward && seed % 3 == 0) call.shape = per_entry(call.shape, seed);
    tally.add(judge(seed, call, all[seed / 4 % all.size()], what));
  }
  CHECK(tally.wrong == "");
  CHECK(tally.too_few() == "");
}

}  // namespace

// Each case compiles at least one kernel, so there are fewer cases than for other properties: 320 in the preset dev,
// 80 under a sanitizer.
TEST_CASE("engines compute random mods forward as the oracle does", "[fuzz][engine]") {
  run(ir::fuzz_count() / 90, {.backward = false});
}
TEST_CASE("engines compute random mods backward as the oracle does", "[fuzz][engine]") {
  run(ir::fuzz_count() / 200, {.forward = false});
}

}  // namespace attune::tests

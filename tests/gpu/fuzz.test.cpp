// tests/gpu/fuzz.test.cpp — random mods on a device, through every kernel, against the oracle
#include "tests/fuzz/fuzz_run.h"
#include "tests/gpu/device.h"

namespace attune::tests {
TEST_CASE("random mods on a device are what the oracle says, forward and backward", "[gpu]") {
  if (skipped()) return;
  FuzzRun run(300);
  const std::string thrown = side_by_side(run.count(), [&](std::size_t i) -> std::string {
    const std::uint64_t seed = run.seed(i);
    if (!run.is_over()) run(i, device_call(seed, 200, 300), device_engine(), {.max = seed % 3 == 0});
    return {};
  });
  run.tell();
  CHECK(thrown == "");
  CHECK(run.wrong() == "");
}

// With ATTUNE_SPLICE=off and ATTUNE_FUZZ_RECORD, then ATTUNE_SPLICE=on and ATTUNE_FUZZ_AGAINST, two runs compare bits
// of whole kernels and spliced ones.
TEST_CASE("random mods of 16 bits on a device are what the oracle says, without gradients of captured tensors",
          "[gpu]") {
  if (skipped()) return;
  FuzzRun run(20);
  const std::string thrown = side_by_side(run.count(), [&](std::size_t i) -> std::string {
    const std::uint64_t seed = 2 * run.seed(i);  // every second one suits Hopper's kernels
    if (!run.is_over()) run(i, device_call(seed, 200, 300), device_engine(), {.max = false, .captured = false});
    return {};
  });
  run.tell();
  CHECK(thrown == "");
  CHECK(run.wrong() == "");
}

}  // namespace attune::tests

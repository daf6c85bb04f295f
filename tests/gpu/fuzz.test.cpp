// tests/gpu/fuzz.test.cpp — random mods on a device, through every kernel, against the oracle
#include <cstdlib>

#include "tests/fuzz/random_call.h"
#include "tests/gpu/device.h"

namespace attune::tests {
TEST_CASE("random mods on a device are what the oracle says", "[gpu]") {
  if (skipped()) return;
  const char* asked = std::getenv("ATTUNE_FUZZ");
  const std::size_t count = asked ? std::strtoull(asked, nullptr, 10) : 300;
  std::vector<Judged> judged(count);
  const std::string thrown = side_by_side(count, [&](std::size_t i) -> std::string {
    const std::uint64_t seed = i;
    const RandomCall call = device_call(seed, 200, 300);
    judged[i] = judge(seed, call, device_engine(), {.backward = false, .max = seed % 3 == 0}, device_functions(call));
    return {};
  });
  Tally tally;
  for (const Judged& one : judged) tally.add(one);
  CHECK(thrown == "");
  CHECK(tally.wrong == "");
  CHECK(tally.too_few() == "");
}

}  // namespace attune::tests

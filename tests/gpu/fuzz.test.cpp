// tests/gpu/fuzz.test.cpp — random mods on a device, through every kernel, against the oracle
#include <cstdlib>

#include "tests/fuzz/random_call.h"
#include "tests/gpu/device.h"

namespace attune::tests {
namespace {

/// A call for the fastest kernel: 16 bits, rows that TMA can read, several tiles of keys.
Shape straight(std::uint64_t seed) {
  ir::Random random(seed ^ 0x90);
  constexpr std::array widths{8, 64, 72, 128};
  Shape out{.batch = 1 + random.below(2), .kv_heads = 1 + random.below(2), .seed = seed};
  out.q_heads = out.kv_heads * (1 + random.below(3));
  out.q_len = 1 + random.below(200);
  out.kv_len = 1 + random.below(300);
  out.d = random.pick(std::span<const int>(widths));
  out.dv = out.d;
  out.dtype = random.chance(0.5) ? DType::bf16 : DType::f16;
  out.layout = random.chance(0.5) ? Layout::bhsd : Layout::bshd;
  out.q_offset = random.chance(0.3) ? static_cast<std::int32_t>(random.below(50)) : 0;
  return out;
}

}  // namespace

TEST_CASE("random mods on a device are what the oracle says", "[gpu]") {
  if (skipped()) return;
  const char* asked = std::getenv("ATTUNE_FUZZ");
  const std::size_t count = asked ? std::strtoull(asked, nullptr, 10) : 300;
  std::vector<Judged> judged(count);
  const std::string thrown = side_by_side(count, [&](std::size_t i) -> std::string {
    const std::uint64_t seed = i;
    RandomCall call(seed);
    if (seed % 2 == 0 && !call.hostile()) call.shape = straight(seed);
    // Hostile mods call functions at arguments that the fast versions do not support: sin of a large number.
    if (call.hostile()) call.shape.dtype = DType::f32;
    const Functions functions = call.shape.dtype == DType::f32 ? Functions::near : Functions::fast;
    judged[i] = judge(seed, call, device_engine(), {.backward = false, .max = seed % 3 == 0}, functions);
    return {};
  });
  Tally tally;
  for (const Judged& one : judged) tally.add(one);
  CHECK(thrown == "");
  CHECK(tally.wrong == "");
  CHECK(tally.too_few() == "");
}

}  // namespace attune::tests

// tests/runtime/attention/arrays.test.cpp — memory for arrays on the host, and where there is no device
#include <attune/error.h>
#include <attune/tensor.h>

#include "tests/catch.h"

using namespace attune;

TEST_CASE("an array is zeroed, shared by its copies, and has an address even when empty", "[arrays]") {
  auto a = Device::cpu().array<float>({2, 3});
  for (const float x : a.values()) CHECK(x == 0);
  const auto copy = a;
  a.data()[4] = 5;
  CHECK(copy.values()[4] == 5);
  CHECK(Device::cpu().array<float>({0, 3}).data() != nullptr);
  CHECK_THROWS_AS((Device{.kind = Device::Kind::cuda}.array<float>({2})), Error);
}

// tests/ir/random.test.cpp — Philox against its published vectors, and the layout every engine shares
#include "ir/random.h"

#include <limits>

#include "tests/catch.h"

namespace attune::ir {

using Block = std::array<std::uint32_t, 4>;

TEST_CASE("Philox gives the vectors its authors published", "[random]") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("random takes word kv & 3 of the block of (kv >> 2, q, head, batch)", "[random]") {
  for (std::int32_t kv = 20; kv < 28; ++kv) {
    const Block block = philox({static_cast<std::uint32_t>(kv) / 4, 3, 2, 1}, {99, 0});
    CHECK(random(99, 1, 2, 3, kv) == static_cast<float>(block[static_cast<std::size_t>(kv % 4)] >> 8) * 0x1p-24f);
  }
}

TEST_CASE("random depends on each of its arguments", "[random]") {
  const float x = random(1, 2, 3, 4, 5);
  CHECK(x != random(0, 2, 3, 4, 5));
  CHECK(x != random(1, 0, 3, 4, 5));
  CHECK(x != random(1, 2, 0, 4, 5));
  CHECK(x != random(1, 2, 3, 0, 5));
  CHECK(x != random(1, 2, 3, 4, 0));
  CHECK(x == random(1, 2, 3, 4, 5));
}

TEST_CASE("random is uniform from 0 to below 1", "[random]") {
  std::array<int, 16> histogram{};
  for (std::int32_t kv = 0; kv < 16'000; ++kv) {
    const float x = random(std::numeric_limits<std::int32_t>::min(), 0, 0, 7, kv);
    REQUIRE(x >= 0);
    REQUIRE(x < 1);
    ++histogram[static_cast<std::size_t>(x * 16)];
  }
  // Five standard deviations of a binomial of 16 000 and 1/16: about 153.
  for (const int bin : histogram) CHECK(std::abs(bin - 1000) < 153);
}

}  // namespace attune::ir

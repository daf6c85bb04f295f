// tests/ir/random.test.cpp — Philox against its published vectors, and the layout every engine shares
#include "ir/eval.h"

#include <algorithm>
#include <bitset>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/catch.h"

namespace attune::ir {

using Block = std::array<std::uint32_t, 4>;

TEST_CASE("Philox gives the vectors its authors published", "[random]") {
  CHECK(philox({0, 0, 0, 0}, {0, 0}, 10) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr std::uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}, 10) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, 10) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  CHECK(philox({0, 0, 0, 0}, {0, 0}, 7) == Block{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48});
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}, 7) == Block{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, 7) ==
        Block{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a});
}

TEST_CASE("random takes word kv & 3 of the block of (kv >> 2, q, head, batch)", "[random]") {
  for (std::int32_t kv = 20; kv < 28; ++kv) {
    const Block block = philox({static_cast<std::uint32_t>(kv) / 4, 3, 2, 1}, {99, 0}, 10);
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

/// The bits of u, from the highest down, as sums of bits of the block's words: word i has bits 32 i and on.
std::array<std::bitset<128>, 16> bits_of_u(std::size_t kv) {
  std::array<std::bitset<128>, 16> out;
  for (std::size_t i = 0; i < 4; ++i)
    for (const std::size_t half : {0u, 1u}) {
      const std::size_t nth = 7 - 4 * half - i, at = kv % 16 + 16 * half;
      out[nth].flip(32 * i + at);
      for (const std::size_t by : {5u, 11u}) out[8 + nth].flip(32 * i + (at + by) % 32);
    }
  return out;
}

TEST_CASE("kept compares 16 bits of the block of (kv >> 4, q, head, batch)", "[random]") {
  for (std::int32_t kv = 40; kv < 56; ++kv) {
    const Block block = philox({static_cast<std::uint32_t>(kv) / 16, 3, 2, 1}, {99, 1}, 7);
    std::int32_t u = 0;
    for (const std::bitset<128>& bits : bits_of_u(static_cast<std::size_t>(kv))) {
      bool odd = false;
      for (std::size_t i = 0; i < 128; ++i) odd ^= bits[i] && (block[i / 32] >> i % 32 & 1);
      u = 2 * u + odd;
    }
    CHECK_FALSE(kept(99, u, 1, 2, 3, kv));
    CHECK(kept(99, u + 1, 1, 2, 3, kv));
  }
}

TEST_CASE("kept is true of n of 65536, for any Int", "[random]") {
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min(),
                         most = std::numeric_limits<std::int32_t>::max();
  for (std::int32_t kv = 0; kv < 1000; ++kv) {
    for (const std::int32_t n : {least, -1, 0}) CHECK_FALSE(kept(5, n, 0, 0, 1, kv));
    for (const std::int32_t n : {65536, 65537, most}) CHECK(kept(5, n, 0, 0, 1, kv));
  }
}

TEST_CASE("the bits that kept compares are independent for any two pairs", "[random]") {
  for (std::size_t one = 0; one < 16; ++one)
    for (std::size_t other = 0; other < one; ++other) {
      std::vector<std::bitset<128>> rows;
      for (const std::size_t kv : {one, other})
        for (const std::bitset<128>& bits : bits_of_u(kv)) rows.push_back(bits);
      std::size_t rank = 0;
      for (std::size_t column = 0; column < 128; ++column) {
        const auto has = [&](const std::bitset<128>& row) { return row[column]; };
        const auto pivot = std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(rank), rows.end(), has);
        if (pivot == rows.end()) continue;
        std::swap(rows[rank], *pivot);
        for (std::size_t i = rank + 1; i < rows.size(); ++i)
          if (has(rows[i])) rows[i] ^= rows[rank];
        ++rank;
      }
      CHECK(rank == 32);
    }
}

TEST_CASE("kept has its share at each key of a word, and neighbours are independent", "[random]") {
  constexpr int words = 20'000;
  // The second: its upper byte ties with one of 256, so that the lower byte decides as often as it can.
  for (const std::int32_t n : {58'982, 0x8080, 6'554}) {
    const double share = n / 65536.0, variance = share * (1 - share);
    // Of each key of 32 and of the same key of the next query; how often both are kept, for keys 1 to 31 further on.
    std::array<int, 32> count{}, both_rows{};
    std::array<std::array<int, 32>, 32> both{};
    for (int q = 0; q < words; ++q) {
      std::array<bool, 32> here{};
      for (std::size_t kv = 0; kv < 32; ++kv) {
        here[kv] = kept(-3, n, 0, 1, 2 * q, 96 + static_cast<std::int32_t>(kv));
        count[kv] += here[kv];
        both_rows[kv] += here[kv] && kept(-3, n, 0, 1, 2 * q + 1, 96 + static_cast<std::int32_t>(kv));
        for (std::size_t before = 0; before < kv; ++before) both[before][kv] += here[before] && here[kv];
      }
    }
    // Five standard deviations.
    const double of_one = 5 * std::sqrt(words * variance),
                 of_two = 5 * std::sqrt(words * share * share * (1 - share * share));
    for (std::size_t kv = 0; kv < 32; ++kv) {
      CHECK(std::abs(count[kv] - words * share) < of_one);
      CHECK(std::abs(both_rows[kv] - words * share * share) < of_two);
      for (std::size_t before = 0; before < kv; ++before)
        CHECK(std::abs(both[before][kv] - words * share * share) < of_two);
    }
  }
}

TEST_CASE("kept depends on each of its arguments, and not on random", "[random]") {
  const auto differ = [](const auto& one, const auto& other) {
    int out = 0;
    for (std::int32_t i = 0; i < 1000; ++i) out += one(i) != other(i);
    return out > 400 && out < 600;
  };
  const auto usual = [](std::int32_t kv) { return kept(1, 32768, 2, 3, 4, kv); };
  CHECK(differ(usual, [](std::int32_t kv) { return kept(0, 32768, 2, 3, 4, kv); }));
  CHECK(differ(usual, [](std::int32_t kv) { return kept(1, 32768, 0, 3, 4, kv); }));
  CHECK(differ(usual, [](std::int32_t kv) { return kept(1, 32768, 2, 0, 4, kv); }));
  CHECK(differ(usual, [](std::int32_t kv) { return kept(1, 32768, 2, 3, 0, kv); }));
  CHECK(differ(usual, [](std::int32_t kv) { return kept(1, 32768, 2, 3, 4, kv + 1); }));
  CHECK(differ(usual, [](std::int32_t kv) { return random(1, 2, 3, 4, kv) < 0.5f; }));
}

}  // namespace attune::ir

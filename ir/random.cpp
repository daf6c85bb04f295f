// ir/random.cpp — Philox 4x32-10
#include "ir/random.h"

#include <bit>

namespace attune::ir {

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t even = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t odd = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<std::uint32_t>(odd >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(odd),
               static_cast<std::uint32_t>(even >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(even)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

float random(std::int32_t seed, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv) {
  const auto u = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
  const auto block = philox({u(kv) >> 2, u(q), u(head), u(batch)}, {u(seed), 0});
  return static_cast<float>(block[u(kv) & 3] >> 8) * 0x1p-24f;
}

bool kept(std::int32_t seed, std::int32_t n, std::int32_t batch, std::int32_t head, std::int32_t q, std::int32_t kv) {
  const auto bits = [](std::int32_t x) { return static_cast<std::uint32_t>(x); };
  const auto block = philox({bits(kv) >> 4, bits(q), bits(head), bits(batch)}, {bits(seed), 1});
  std::uint32_t own = 0, shared = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto two = [&](std::uint32_t x) { return (x >> (bits(kv) & 15) & 0x10001u) << i; };
    own |= two(block[i]);
    shared |= two(std::rotr(block[i], 5) ^ std::rotr(block[i], 11));
  }
  // The bits from 16 on follow the four lowest.
  const auto byte = [](std::uint32_t x) { return (x | x >> 12) & 0xff; };
  return static_cast<std::int32_t>(byte(own) << 8 | byte(shared)) < n;
}

}  // namespace attune::ir

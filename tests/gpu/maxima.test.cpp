// tests/gpu/maxima.test.cpp — scores that rise by hundreds after the keys that are visited first
#include <attune/attune.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/engines/cuda/engine.h"
#include "tests/gpu/disturbance.h"

namespace attune::tests {
namespace {

/// Heads of 128 queries, one tile each, over two key heads. The first keys, which are visited last, have scores around
/// `rise` in the first key head, or in both.
std::size_t wrong(const Attention& attention, std::int64_t heads, std::int64_t rising, float rise) {
  const Device host = Device::cpu(), gpu = Device::cuda();
  constexpr std::int64_t q_len = 128, kv_len = 270, kv_heads = 2, d = 64;
  const auto q = filled(1, {1, heads, q_len, d}), k = filled(2, {1, kv_heads, kv_len, d}),
             v = filled(3, {1, kv_heads, kv_len, d});
  // One column determines the score of the first keys.
  for (std::int64_t i = 0; i < heads * q_len; ++i) q.data()[i * d] = 8.0f;
  for (std::int64_t h = 0; h < rising; ++h)
    for (std::int64_t kv = 0; kv < kv_len; ++kv) k.data()[(h * kv_len + kv) * d] = kv < 30 ? rise : 0.0f;
  const auto wanted = host.array<bf16>({1, heads, q_len, d}), got = gpu.array<bf16>({1, heads, q_len, d});
  const auto lse = host.array<float>({1, heads, q_len}), got_lse = gpu.array<float>({1, heads, q_len});
  attention.run({.q = q, .k = k, .v = v, .o = wanted, .lse = lse});
  const auto gq = q.on(gpu), gk = k.on(gpu), gv = v.on(gpu);
  attention.run({.q = gq, .k = gk, .v = gv, .o = got, .lse = got_lse});
  const auto o_here = got.on(host);
  const auto lse_here = got_lse.on(host);
  std::size_t out = 0;
  for (std::size_t i = 0; i < wanted.values().size(); ++i) out += !is_near(o_here.values()[i], wanted.values()[i]);
  for (std::size_t i = 0; i < lse.values().size(); ++i)
    out += !(std::fabs(lse_here.values()[i] - lse.values()[i]) < 1e-3f * std::max(1.0f, std::fabs(lse.values()[i])));
  return out;
}

}  // namespace

TEST_CASE("bits do not depend on when tiles are put on lists, on how many blocks there are, or on other work",
          "[gpu]") {
  if (skipped()) return;
  // 132 blocks have 80 tiles each: 40 whose powers overflow, of the first key head, and 40 others. A warp's list holds
  // 31.
  constexpr std::int64_t heads = 132 * 80, q_len = 128, kv_len = 270, kv_heads = 2, d = 64, dv = 16;
  constexpr int runs = 200;
  const Device host = Device::cpu(), gpu = Device::cuda();
  const auto q = filled(1, {1, heads, q_len, d}), k = filled(2, {1, kv_heads, kv_len, d}),
             v = filled(3, {1, kv_heads, kv_len, dv});
  for (std::int64_t i = 0; i < heads * q_len; ++i) q.data()[i * d] = 8.0f;
  for (std::int64_t kv = 0; kv < kv_len; ++kv) k.data()[kv * d] = kv < 30 ? 300.0f : 0.0f;
  const auto gq = q.on(gpu), gk = k.on(gpu), gv = v.on(gpu), o = gpu.array<bf16>({1, heads, q_len, dv});
  const auto lse = gpu.array<float>({1, heads, q_len});
  const auto o_here = host.array<bf16>({1, heads, q_len, dv});
  const auto lse_here = host.array<float>({1, heads, q_len});
  const Forward call{.q = gq, .k = gk, .v = gv, .o = o, .lse = lse};
  const Attention plain, sparse{.mask = [](At at) { return at.kv < 200 || (at.kv - at.q) % 3 == 0; }};
  const Disturbance disturbance;
  for (const Attention* attention : {&plain, &sparse}) {
    const Subject subject(*attention);
    const compiler::Problem problem = compiler::check(subject.written, call, subject.scale);
    const auto result = [&](int blocks) {
      runtime::cuda::engine.run(runtime::call_of(subject.lowered, call, problem), {.blocks = blocks});
      copy(o, o_here);
      copy(lse, lse_here);
    };
    result(132);
    const auto kept = [](const auto& array) { return std::vector(array.values().begin(), array.values().end()); };
    const auto o_wanted = kept(o_here);
    const auto lse_wanted = kept(lse_here);
    const auto same = [](const auto& array, const auto& wanted) {
      return std::memcmp(array.data(), wanted.data(), array.values().size_bytes()) == 0;
    };
    REQUIRE(std::ranges::count(lse_wanted, 0.0f) < heads);
    for (const int blocks : {132, 131, 7, 1}) {
      int different = 0;
      for (int i = 0; i < runs; ++i) {
        disturbance.run(i);
        result(blocks);
        different += !(same(o_here, o_wanted) && same(lse_here, lse_wanted));
      }
      INFO(blocks << " blocks");
      CHECK(different == 0);
    }
  }
}

TEST_CASE("powers that overflow are computed again, for a few tiles and for more than a block remembers", "[gpu]") {
  if (skipped()) return;
  const Attention plain, window{.mask = [](At at) { return at.kv < 265 && at.kv <= at.q + 200; }},
      sparse{.mask = [](At at) { return at.kv < 200 || (at.kv - at.q) % 3 == 0; }};
  // s = 8 rise / 8, and powers overflow about 88 above the previous maximum.
  for (const Attention& attention : {plain, window, sparse})
    for (const float rise : {60.0f, 300.0f, 3000.0f}) {
      INFO("rise " << rise);
      CHECK(wrong(attention, 40, 1, rise) == 0);
    }
  // For each block of an H200, 45 such tiles, then 90.
  for (const Attention& attention : {plain, window, sparse})
    for (const std::int64_t rising : {1, 2}) CHECK(wrong(attention, 12000, rising, 300.0f) == 0);
}

}  // namespace attune::tests

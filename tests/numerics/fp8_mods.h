// tests/numerics/fp8_mods.h — mods for calls whose q, k and v are FP8 (E4M3), of up to 1200 keys and 16 heads
#pragma once

#include <attune/attune.h>

#include <array>
#include <cmath>

namespace attune::tests::fp8 {

inline const Attention plain{};
inline const Attention causal{.mask = mods::causal()};
inline const Attention windowed{.mask = mods::sliding_window(70)};
inline const Attention bent{.score = mods::alibi(8) | mods::softcap(5), .mask = mods::causal()};
inline const Attention rich = [] {
  static const auto slope = Device::cpu().array<float>({16}, "slope"),
                    sinks = Device::cpu().array<float>({16}, "sinks");
  for (std::int64_t i = 0; i < 16; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 16; ++i) sinks.data()[i] = 0.5f * static_cast<float>(i % 5) - 1;
  return Attention{.score = [](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); },
                   .mask = [](At at) { return at.kv <= at.q + 130 && at.kv % 3 != at.q % 2; },
                   .prob = [](Float p, At) { return where(random(11) < 0.9f, p / 0.9f, 0); },
                   .sink = [](SinkAt at) { return sinks[at.head]; }};
}();
/// Scales of k for each head and of v for each key: from 2^-8 to 2^9.
inline const Attention scaled = [] {
  static const auto of_k = Device::cpu().array<float>({16}, "of_k"), of_v = Device::cpu().array<float>({1200}, "of_v");
  for (std::int64_t i = 0; i < 16; ++i) of_k.data()[i] = 0.5f + 0.1f * static_cast<float>(i);
  for (std::int64_t i = 0; i < 1200; ++i)
    of_v.data()[i] = std::ldexp(1.0f + 0.1f * static_cast<float>(i % 7), static_cast<int>(9 - i / 70));
  return Attention{.score = [](Float s, At at) { return s * of_k[at.head]; },
                   .mask = mods::causal(),
                   .prob = [](Float p, At at) { return p * of_v[at.kv]; }};
}();
inline const Attention documents = [] {
  static const auto doc = Device::cpu().array<int>({1200}, "doc");
  for (int i = 0; i < 1200; ++i) doc.values()[static_cast<std::size_t>(i)] = i / 150;
  return Attention{.mask = mods::document(doc)};
}();
/// Tiles are visited from the last key on: powers overflow below the maximum of the first.
inline const Attention rising{.score = [](Float s, At at) { return s - 0.7f * f32(at.kv); }};
inline const std::array<const Attention*, 8> all = {&plain, &causal, &windowed,  &bent,
                                                    &rich,  &scaled, &documents, &rising};

}  // namespace attune::tests::fp8

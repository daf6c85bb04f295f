// tests/numerics/rich.h — a mod that reads positions, lengths and captured tensors at every level
#pragma once

#include <attune/attune.h>

namespace attune::tests {

/// A mask that looks at data, a sink, dropout: for up to 24 batch entries and heads, and 1 100 positions.
inline Attention rich() {
  const Device host = Device::cpu();
  static const auto slope = host.array<float>({24}, "slope"), bias = host.array<float>({1100}, "bias"),
                    sinks = host.array<float>({24, 24}, "sinks");
  static const auto doc = host.array<std::int32_t>({1100}, "doc");
  for (std::int64_t i = 0; i < 24; ++i) slope.data()[i] = 1.0f / static_cast<float>(i + 2);
  for (std::int64_t i = 0; i < 1100; ++i) bias.data()[i] = static_cast<float>(i % 7) * 0.3f - 1;
  for (std::int64_t i = 0; i < 1100; ++i) doc.data()[i] = static_cast<std::int32_t>(i / 90);
  for (std::int64_t i = 0; i < 576; ++i) sinks.data()[i] = static_cast<float>(i % 5) * 0.5f - 1;
  return Attention{
      .score =
          [](Float s, At at) {
            return 5 * tanh((s + slope[at.head] * (at.kv - at.q) + bias[at.kv] + 0.1f * f32(at.kv_len - at.kv)) / 5);
          },
      .mask = [](At at) { return at.kv <= at.q + 130 && (doc[at.kv] <= doc[at.q] || at.kv % 3 == at.batch % 3); },
      .prob = [](Float p, At) { return where(attune::random(11) < 0.9f, p / 0.9f, 0); },
      .sink = [](SinkAt at) { return sinks(at.batch, at.head); }};
}

}  // namespace attune::tests

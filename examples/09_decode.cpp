// examples/09_decode.cpp — decode: one query at a time against a growing cache, on your own threads and memory
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <thread>

using namespace attune;

int main() {
  constexpr int heads = 8, kv_heads = 2, n = 200, d = 32;
  const auto made = [](int h) { return Device::cpu().array<float>({1, h, n, d}); };
  const auto q = made(heads), k = made(kv_heads), v = made(kv_heads), o = made(heads), at_once = made(heads);
  std::mt19937 dice(9);
  for (const auto& t : {q, k, v})
    for (float& x : t.values()) x = std::normal_distribution<float>()(dice);
  // [decode]
  const auto of = [](const Array<float>& t, int first, int count) {  // of some positions
    return Tensor(t.data() + first * d, DType::f32, {1, t.tensor().shape[1], count, d}, {0, n * d, d, 1});
  };
  const auto step = [&](int i) {
    return Forward{.q = of(q, i, 1), .k = of(k, 0, i + 1), .v = of(v, 0, i + 1), .o = of(o, i, 1), .q_offset = i};
  };
  const auto share = [](std::int64_t count, const Task& run) {
    const std::jthread other([&] {
      for (std::int64_t i = 1; i < count; i += 2) run(i, 1);
    });
    for (std::int64_t i = 0; i < count; i += 2) run(i, 0);
  };
  const Executor two{.workers = 2, .parallel_for = share};
  const Attention attention{.mask = mods::sliding_window(64)};
  const auto memory = Device::cpu().array<std::uint8_t>(
      {static_cast<std::int64_t>(attention.workspace(step(n - 1), {.executor = two}))});
  for (int i = 0; i < n; ++i)
    attention.run(step(i), {.executor = two, .workspace = std::as_writable_bytes(memory.values())});
  // [decode]
  attention(q, k, v, at_once);
  const auto close = [](float a, float b) { return std::fabs(a - b) < 1e-5f; };
  std::puts(std::ranges::equal(o.values(), at_once.values(), close) ? "ok" : "wrong");
}

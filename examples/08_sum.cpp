// examples/08_sum.cpp — a dot product within a score: two more columns of q and k without appending them
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  constexpr int n = 20, d = 6, more = 2;
  const Device cpu = Device::cpu();
  // The whole q and k have d + more columns; the views have the first d.
  const auto whole_q = cpu.array<float>({1, 1, n, d + more}), whole_k = cpu.array<float>({1, 1, n, d + more}),
             v = cpu.array<float>({1, 1, n, d}), o = cpu.array<float>({1, 1, n, d}),
             expected = cpu.array<float>({1, 1, n, d});
  std::mt19937 dice(8);
  std::normal_distribution<float> normal;
  for (const auto& t : {whole_q, whole_k, v})
    for (float& x : t.values()) x = normal(dice);
  using Extents = std::initializer_list<std::int64_t>;
  const auto columns = [](const Array<float>& t, int first, Extents shape, Extents strides) {
    return Tensor(t.data() + first, DType::f32, shape, strides);
  };
  // [sum]
  const Capture<float> u(columns(whole_q, d, {n, more}, {d + more, 1}), "u");
  const Capture<float> w(columns(whole_k, d, {n, more}, {d + more, 1}), "w");
  const Score with_more = [=](Float s, At at) {
    return s + sum(more, [=](Int i) { return u(at.q, i) * w(at.kv, i); });
  };
  // [sum]
  const Attention narrow{.score = with_more, .scale = 1.0};
  const auto left = [&](const Array<float>& t) { return columns(t, 0, {1, 1, n, d}, {0, 0, d + more, 1}); };
  narrow(left(whole_q), left(whole_k), v, o);
  const Attention wide{.scale = 1.0};
  wide(whole_q, whole_k, v, expected);
  const auto close = [](float a, float b) { return std::fabs(a - b) < 1e-6f; };
  std::puts(std::ranges::equal(o.values(), expected.values(), close) ? "ok" : "wrong");
}

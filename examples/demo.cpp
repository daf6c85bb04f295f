// examples/demo.cpp — what attune is for: your own score, explained, run, and checked against plain loops
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

using namespace attune;

namespace {

constexpr int heads = 4, kv_heads = 2, n = 96, d = 32;

/// softmax(score) v by plain loops, without attune: ALiBi, a softcap of 20 and a window of 24 written by hand.
double plain(const float* q, const float* k, const float* v, int h, int i, int x) {
  const int kv_head = h / (heads / kv_heads);
  double sum = 0, weighted = 0;
  for (int j = 0; j < n; ++j) {
    if (j > i || i - j >= 24) continue;
    double s = 0;
    for (int c = 0; c < d; ++c) s += double{q[(h * n + i) * d + c]} * double{k[(kv_head * n + j) * d + c]};
    s = s / std::sqrt(d) + std::exp2(-2.0 * (h + 1)) * (j - i);
    const double p = std::exp(20 * std::tanh(s / 20));
    sum += p;
    weighted += p * double{v[(kv_head * n + j) * d + x]};
  }
  return weighted / sum;
}

}  // namespace

int main() {
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, heads, n, d}), k = cpu.array<float>({1, kv_heads, n, d}),
             v = cpu.array<float>({1, kv_heads, n, d}), o = cpu.array<float>({1, heads, n, d});
  const auto slope = cpu.array<float>({heads}, "slope");
  std::mt19937 dice(7);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v})
    for (float& x : t.values()) x = normal(dice);
  for (int h = 0; h < heads; ++h) slope.data()[h] = std::exp2(-2.0f * static_cast<float>(h + 1));

  const Attention attention{
      .score = [=](Float s, At at) { return 20.0f * tanh((s + slope[at.head] * (at.kv - at.q)) / 20.0f); },
      .mask = mods::sliding_window(24)};
  std::puts(attention.explain().c_str());
  attention(q, k, v, o);

  double worst = 0;
  for (int h = 0; h < heads; ++h)
    for (int i = 0; i < n; ++i)
      for (int x = 0; x < d; ++x)
        worst = std::fmax(
            worst, std::fabs(plain(q.data(), k.data(), v.data(), h, i, x) - double{o.data()[(h * n + i) * d + x]}));
  std::printf("%s: %d outputs, within %.1e of plain loops written by hand\n", worst < 1e-5 ? "ok" : "wrong",
              heads * n * d, worst);
  return worst < 1e-5 ? 0 : 1;
}

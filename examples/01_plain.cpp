// examples/01_plain.cpp — plain attention in one line, checked against five lines of plain loops
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  constexpr int n = 24, d = 16;
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 1, n, d}), k = cpu.array<float>({1, 1, n, d}), v = cpu.array<float>({1, 1, n, d}),
             o = cpu.array<float>({1, 1, n, d});
  std::mt19937 dice(1);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v})
    for (float& x : t.values()) x = normal(dice);

  // [call]
  const Attention attention;
  attention(q, k, v, o);
  // [call]

  double worst = 0;
  for (int i = 0; i < n; ++i) {
    double sum = 0, row[d] = {};
    for (int j = 0; j < n; ++j) {
      double s = 0;
      for (int x = 0; x < d; ++x) s += double{q.data()[i * d + x]} * double{k.data()[j * d + x]} / std::sqrt(d);
      sum += std::exp(s);
      for (int x = 0; x < d; ++x) row[x] += std::exp(s) * double{v.data()[j * d + x]};
    }
    for (int x = 0; x < d; ++x) worst = std::fmax(worst, std::fabs(row[x] / sum - double{o.data()[i * d + x]}));
  }
  std::printf("%s: within %.1e of the five lines\n", worst < 1e-6 ? "ok" : "wrong", worst);
}

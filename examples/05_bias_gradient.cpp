// examples/05_bias_gradient.cpp — the gradient of a captured table, checked against a finite difference
#include <attune/attune.h>

#include <cmath>
#include <cstdio>
#include <random>

using namespace attune;

int main() {
  constexpr int n = 16, d = 8, reach = n;
  const Device cpu = Device::cpu();
  const auto q = cpu.array<float>({1, 2, n, d}), k = cpu.array<float>({1, 2, n, d}), v = cpu.array<float>({1, 2, n, d}),
             o = cpu.array<float>({1, 2, n, d}), grad_o = cpu.array<float>({1, 2, n, d});
  std::mt19937 dice(5);
  std::normal_distribution<float> normal;
  for (const auto& t : {q, k, v, grad_o})
    for (float& x : t.values()) x = normal(dice);

  // [gradient]
  const auto table = cpu.array<float>({2, 2 * reach}, "table"), grad_table = cpu.array<float>({2, 2 * reach});
  const Attention attention{.score = mods::relative_bias(table, reach)};
  attention.backward({.q = q, .k = k, .v = v, .grad_o = grad_o, .captured = {{.of = table, .into = grad_table}}});
  // [gradient]

  const auto loss = [&](int entry, float step) {
    table.data()[entry] += step;
    attention(q, k, v, o);
    table.data()[entry] -= step;
    double sum = 0;
    for (std::size_t i = 0; i < o.values().size(); ++i) sum += double{o.values()[i]} * double{grad_o.values()[i]};
    return sum;
  };
  const int entry = reach - 3;  // head 0, keys three ahead
  // The error of a difference in f32: rounding about 1e-6 / step, curvature about step^2.
  const double predicted = double{grad_table.data()[entry]}, seen = (loss(entry, 0.0625f) - loss(entry, -0.0625f)) * 8;
  const bool right = std::fabs(predicted) > 0.01 && std::fabs(seen - predicted) < 2e-4;
  std::printf("%s: predicted %.6f, seen %.6f\n", right ? "ok" : "wrong", predicted, seen);
}

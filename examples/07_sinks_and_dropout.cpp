// examples/07_sinks_and_dropout.cpp — sinks, which join the softmax's denominator, and dropout after the softmax
#include <attune/attune.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

using namespace attune;

int main() {
  constexpr int n = 64;
  const Device cpu = Device::cpu();
  // Scores are 0 and values 1, so each output is the fraction of the softmax that its row kept.
  const auto q = cpu.array<float>({1, 2, n, 4}), k = cpu.array<float>({1, 2, n, 4}), v = cpu.array<float>({1, 2, n, 1}),
             o = cpu.array<float>({1, 2, n, 1}), logit = cpu.array<float>({2}, "logit");
  std::ranges::fill(v.values(), 1.0f);
  logit.data()[0] = std::log(64.0f), logit.data()[1] = -INFINITY;

  // [sink]
  const Sink sink = [=](SinkAt at) { return logit[at.head]; };
  const Attention with_sink{.sink = sink};
  // [sink]
  with_sink(q, k, v, o);
  const bool shared = std::ranges::all_of(o.values().first(n), [](float x) { return std::fabs(x - 0.5f) < 1e-6f; }) &&
                      std::ranges::all_of(o.values().last(n), [](float x) { return std::fabs(x - 1.0f) < 1e-6f; });

  // [dropout]
  Param<int> seed("seed", 1);
  const Attention dropped{.prob = mods::dropout(0.75f, seed)};  // keeps three of four: torch's dropout_p is 0.25
  // [dropout]
  double sum = 0;
  for (int step = 0; step < 8; ++step) {
    seed = step;  // a new argument of the same kernel
    dropped(q, k, v, o);
    sum += std::accumulate(o.values().begin(), o.values().end(), 0.0) / (8 * 2 * n);
  }
  std::printf("%s: dropout keeps %.4f on average\n", shared && std::fabs(sum - 1) < 0.01 ? "ok" : "wrong", sum);
}

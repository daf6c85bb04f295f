// tests/bench/lower.bench.cpp — how long parsing and lowering takes, as lines of JSON: ./bench_lower
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include <attune/attune.h>

#include "compiler/lower.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

template <class F>
void measure(const std::string& name, int repetitions, F f) {
  std::vector<double> times;
  std::size_t nodes = 0;
  for (int i = 0; i < repetitions; ++i) {
    const auto start = Clock::now();
    const compiler::LoweredMod lowered = f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    nodes = ir::in_order(std::vector{lowered.mod.score, lowered.mod.mask}).size();
  }
  std::sort(times.begin(), times.end());
  std::printf("{\"bench\": \"%s\", \"nodes\": %zu, \"repetitions\": %d, \"min_us\": %.1f, \"median_us\": %.1f}\n",
              name.c_str(), nodes, repetitions, times.front(), times[times.size() / 2]);
}

/// Nested operations, each applied to the one before.
std::string chain(int operations) {
  std::string text = "s";
  for (int i = 0; i < operations; i += 5)
    text = "(" + text + " * 0.5f + slope[h] * f32(kv - q - " + std::to_string(i) + "))";
  return text;
}

/// A sum of different terms.
std::string terms(int count) {
  std::string text = "s";
  for (int i = 0; i < count; ++i)
    text += " + where(kv - q < " + std::to_string(i) + ", tanh(s * " + std::to_string(i) + ".5f), 0.0f)";
  return text;
}

}  // namespace

int main() {
  float slopes[16] = {};
  const Tensor slope(slopes, DType::f32, {16});
  const auto parse_and_lower = [&](const std::string& score, const std::string& mask) {
    Text text;
    text.capture("slope", slope).param("cap", 30.0f);
    return compiler::lower(Attention{.score = text.score(score), .mask = text.mask(mask)});
  };
  measure("ordinary", 2000, [&] {
    return parse_and_lower("cap * tanh((s + slope[h] * f32(kv - q)) / cap)", "kv <= q && q - kv < 1024");
  });
  measure("causal", 2000, [&] { return parse_and_lower("s", "kv <= q"); });
  const std::string deep = chain(5000), wide = terms(1250);
  measure("deep", 20, [&] { return parse_and_lower(deep, "kv <= q"); });
  measure("wide", 20, [&] { return parse_and_lower(wide, "kv <= q"); });
  // The language by operators: 10 000 operations upon each other, and a value used twice 60 times over.
  measure("operators", 20, [&] {
    return compiler::lower(Attention{.score = [](Float s, At at) {
      for (int i = 0; i < 5000; ++i) s = s * 0.999f + f32(at.kv - at.q);
      return s;
    }});
  });
  measure("squares", 200, [&] {
    return compiler::lower(Attention{.score = [](Float s, At) {
      for (int i = 0; i < 60; ++i) s = s * s;
      return s;
    }});
  });
}

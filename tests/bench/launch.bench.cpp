// tests/bench/launch.bench.cpp — what a repeated call takes on the host beside the driver, whose part is next to
// nothing here, as lines of JSON: ./bench_launch
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include <attune/attune.h>

#include "runtime/cuda/driver.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

template <class F>
void measure(const char* name, F f) {
  constexpr int rounds = 200, each = 500;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < each; ++j) f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / each);
  }
  std::ranges::sort(times);
  std::printf("{\"bench\": \"%s\", \"min_us\": %.2f, \"median_us\": %.2f, \"p90_us\": %.2f}\n", name, times.front(),
              times[times.size() / 2], times[times.size() * 9 / 10]);
}

}  // namespace

int main() {
  const Device gpu = Device::cuda();
  constexpr std::int64_t heads = 16, length = 1024, d = 128;
  const auto q = gpu.array<bf16>({2, heads, length, d}), k = gpu.array<bf16>({2, heads, length, d}),
             v = gpu.array<bf16>({2, heads, length, d}), o = gpu.array<bf16>({2, heads, length, d});
  const auto slope = gpu.array<float>({heads}, "slope");
  const auto doc = gpu.array<int>({length}, "doc");
  const Forward call{.q = q, .k = k, .v = v, .o = o};

  const runtime::cuda::Driver& driver = runtime::cuda::driver();
  const runtime::cuda::Current current(0);
  measure("the driver's functions that a causal call asks for, alone", [&] {
    runtime::cuda::cu::Capture status{};
    driver.cuStreamIsCapturing(nullptr, &status);
    driver.cuMemsetD32Async(reinterpret_cast<runtime::cuda::cu::Address>(o.data()), 0, 1, nullptr);
  });
  const std::pair<const char*, Attention> mods[] = {
      {"causal", {.mask = mods::causal()}},
      {"alibi, causal",
       {.score = [=](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); }, .mask = mods::causal()}},
      {"documents, causal, listed", {.mask = [=](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }}},
  };
  for (const auto& [name, attention] : mods) {
    attention.run(call);
    measure(name, [&, &a = attention] { a.run(call); });
  }
}

// tests/bench/launch.bench.cpp — a repeated call's time on the host, compared with a bare launch, as lines of JSON:
// ./bench_launch, or LD_LIBRARY_PATH=driver ./bench_launch with a driver whose part is next to nothing
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <attune/attune.h>

#include "runtime/platform/nvidia/driver.h"
#include "runtime/platform/nvidia/nvrtc.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

namespace cuda = runtime::cuda;
namespace cu = cuda::cu;

/// Times bursts that fit into the device's queue.
template <class F>
void measure(const char* name, F f) {
  constexpr int rounds = 400, each = 50;
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    for (int j = 0; j < each; ++j) f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count() / each);
    cuda::driver().cuStreamSynchronize(nullptr);
  }
  std::ranges::sort(times);
  std::printf("{\"bench\": \"%s\", \"min_us\": %.2f, \"median_us\": %.2f, \"p90_us\": %.2f}\n", name, times.front(),
              times[times.size() / 2], times[times.size() * 9 / 10]);
}

/// A kernel that does nothing.
cu::Function nothing() {
  const cuda::Binary binary = cuda::compile(
      {.name = "nothing",
       .text = "__global__ void nothing(long long, long long) {}",
       .options = {"--gpu-architecture=sm_" + std::to_string(cuda::facts(0).arch())},
       .symbol = "nothing"});
  const cuda::Driver& d = cuda::driver();
  cu::Library library = nullptr;
  cu::Kernel kernel = nullptr;
  d.cuLibraryLoadData(&library, binary.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  d.cuLibraryGetKernel(&kernel, library, binary.symbol.c_str());
  return reinterpret_cast<cu::Function>(kernel);
}

}  // namespace

int main() {
  const Device gpu = Device::cuda();
  constexpr std::int64_t heads = 16, length = 128, d = 128;
  const auto q = gpu.array<bf16>({1, heads, length, d}), k = gpu.array<bf16>({1, heads, length, d}),
             v = gpu.array<bf16>({1, heads, length, d}), o = gpu.array<bf16>({1, heads, length, d});
  const auto slope = gpu.array<float>({heads}, "slope");
  const auto doc = gpu.array<int>({length}, "doc");
  const auto space = gpu.array<int>({1 << 16});
  const Forward call{.q = q, .k = k, .v = v, .o = o};

  const cuda::Driver& driver = cuda::driver();
  const cuda::Current current(0);
  const cu::Function empty = nothing();
  measure("a bare cuLaunchKernelEx of a kernel that does nothing", [&] {
    const cu::LaunchConfig config{.grid = {16, 1, 1}, .block = {384, 1, 1}, .shared_bytes = 0, .stream = nullptr};
    long long x = 0;
    std::array<void*, 2> arguments{&x, &x};
    driver.cuLaunchKernelEx(&config, empty, arguments.data(), nullptr);
  });
  measure("cuMemsetD32Async", [&] { driver.cuMemsetD32Async(reinterpret_cast<cu::Address>(o.data()), 0, 1, nullptr); });
  measure("cuMemAllocAsync and cuMemFreeAsync", [&] {
    cu::Address at = 0;
    driver.cuMemAllocAsync(&at, 4, nullptr);
    driver.cuMemFreeAsync(at, nullptr);
  });
  Resources with;
  with.workspace = {reinterpret_cast<std::byte*>(space.data()), 1 << 18};
  const std::pair<const char*, Attention> mods[] = {
      {"causal", {.mask = mods::causal()}},
      {"alibi, causal",
       {.score = [=](Float s, At at) { return s + slope[at.head] * (at.kv - at.q); }, .mask = mods::causal()}},
      {"documents, causal, listed", {.mask = [=](At at) { return at.kv <= at.q && doc[at.q] == doc[at.kv]; }}},
  };
  for (const auto& [name, attention] : mods) {
    attention.run(call);
    measure(name, [&, &a = attention] { a.run(call); });
    const std::string given = std::string(name) + ", with memory to work in";
    measure(given.c_str(), [&, &a = attention] { a.run(call, with); });
    if (const Cover cover = attention.cover(call)) {
      const std::string listed = std::string(name) + " before, by a cover";
      measure(listed.c_str(), [&, &a = attention] { a.run(call, {.cover = cover}); });
    }
  }
  const auto other = gpu.array<float>({heads}, "slope");
  const std::array<Tensor, 1> first{slope}, second{other};
  Forward binds = call;
  bool which = false;
  measure("alibi, causal, bound by each call to new memory, with memory to work in", [&] {
    binds.captures = (which = !which) ? first : second;
    mods[1].second.run(binds, with);
  });
}

// tests/bench/cache.bench.cpp — how long getting a kernel takes: compiled, from disk, from memory; as lines of JSON
#include <attune/attune.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "codegen/cpu.h"
#include "codegen/llvm.h"
#include "compiler/check.h"
#include "compiler/lower.h"
#include "runtime/attention/lowered.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/kernels.h"
#include "runtime/engines/cpu/orc.h"
#include "runtime/machine/cache/cache.h"
#include "runtime/machine/cache/objects.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& f) {
  const auto start = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void tell(const std::string& name, std::vector<double> seconds) {
  std::ranges::sort(seconds);
  const auto us = [&](std::size_t i) { return 1e6 * seconds[i]; };
  std::printf("{\"bench\": \"%s\", \"repetitions\": %zu, \"min_us\": %.3f, \"median_us\": %.3f, \"p90_us\": %.3f}\n",
              name.c_str(), seconds.size(), us(0), us(seconds.size() / 2), us(seconds.size() * 9 / 10));
  std::fflush(stdout);
}

/// Times calls so short that it measures 1000 together.
void measure(const std::string& name, const std::function<void()>& f) {
  constexpr int together = 1000;
  std::vector<double> times;
  for (int i = 0; i < 200; ++i)
    times.push_back(seconds_of([&] {
                      for (int j = 0; j < together; ++j) f();
                    }) /
                    together);
  tell(name, times);
}

/// The same from many threads at once: measures how long each thread waits.
void measure_with(int threads, const std::string& name, const std::function<void()>& f) {
  std::vector<double> times(static_cast<std::size_t>(threads));
  std::vector<std::thread> all;
  for (double& time : times)
    all.emplace_back([&] {
      constexpr int calls = 200'000;
      time = seconds_of([&] {
               for (int j = 0; j < calls; ++j) f();
             }) /
             calls;
    });
  for (std::thread& t : all) t.join();
  tell(name, times);
}

Attention attention_of(int i) {
  static float slopes[4] = {};
  Text text;
  text.capture("slope", Tensor(slopes, DType::f32, {4}));
  return {.score = text.score("30.0f * tanh((s + slope[h] * f32(kv - q)) / 30.0f)"),
          .mask = text.mask("kv <= q && q - kv < " + std::to_string(100 + i))};
}

/// A process caches what it compiles for the next process: the first run measures compiling, the second measures
/// reading from the cache.
void on_device() {
  const Device device = Device::cuda();
  const auto q = device.array<bf16>({1, 8, 256, 128}), k = device.array<bf16>({1, 8, 256, 128}),
             v = device.array<bf16>({1, 8, 256, 128}), o = device.array<bf16>({1, 8, 256, 128});
  const Forward call{.q = q.tensor(), .k = k.tensor(), .v = v.tensor(), .o = o.tensor()};
  std::vector<double> prepared;
  for (int i = 0; i < 5; ++i) {
    const Text text;
    const Attention one{.score = text.score("30.0f * tanh(s / 30.0f)"),
                        .mask = text.mask("kv <= q && q - kv < " + std::to_string(100 + i))};
    prepared.push_back(seconds_of([&] { one.prepare(call); }));
  }
  tell("CUDA: a forward kernel that this process has not had: prepare", prepared);
  const Text text;
  const Attention attention{.score = text.score("30.0f * tanh(s / 30.0f)"), .mask = text.mask("kv <= q")};
  attention.prepare(call);
  measure("CUDA: a call's workspace: all of the way to its kernel", [&] { attention.workspace(call); });
  measure("CUDA: a call, until it is on the stream", [&] { attention.run(call); });
}

}  // namespace

int main() {
  namespace cpu = runtime::cpu;
  const auto isa = cpu::isa();
  constexpr auto unit = codegen::Unit::f32;
  const Attention attention = attention_of(0);
  const compiler::LoweredMod lowered = compiler::lower(attention);
  const compiler::Mod& mod = lowered.mod;
  {
    std::vector<double> made, loaded, found;
    std::string folder = (std::filesystem::temp_directory_path() / "attune-bench-XXXXXX").string();
    if (!mkdtemp(folder.data())) return 1;
    runtime::Cache cache(folder);
    for (int i = 0; i < 40; ++i) {
      const compiler::Mod other = compiler::lower(attention_of(1 + i)).mod;
      const runtime::CacheKey key = runtime::cache_key(other.digest().hex());
      std::string object;
      const auto get = [&] {
        object = cache
                     .get(key,
                          [&] {
                            return runtime::CacheEntry{other.facts(), codegen::forward_object(other, isa, unit)};
                          })
                     .bytes;
        cpu::Loaded code(object);
        if (!code.find<codegen::AttendFn>(codegen::mod_symbol::attend_all)) std::abort();
      };
      made.push_back(seconds_of(get));
      loaded.push_back(seconds_of(get));
      found.push_back(seconds_of([&] { cache.find(key); }));
    }
    std::filesystem::remove_all(folder);
    tell("a CPU forward kernel: compiled, kept and loaded", made);
    tell("a CPU forward kernel: read from disk and loaded", loaded);
    tell("of that: read from disk and checked", found);
  }
  std::vector<float> numbers(4 * 64 * 64), results(4 * 64 * 64);
  const Tensor in(numbers.data(), DType::f32, {1, 4, 64, 64}), out(results.data(), DType::f32, {1, 4, 64, 64});
  const Forward call{.q = in, .k = in, .v = in, .o = out};
  const compiler::Problem problem = compiler::check(lowered, call, std::nullopt);
  measure("memo: the attention's lowered form", [&] { attention.memo.get(attention); });
  measure("check: the call's tensors", [&] { compiler::check(lowered, call, std::nullopt); });
  measure("check: what captures are read at", [&] { compiler::check_reads(mod, lowered.slots.captures, problem); });
  measure("the Mod's digest", [&] { mod.digest(); });
  measure("kit, from memory", [&] { cpu::kit(isa, unit, DType::f32); });
  measure("forward kernel with its key, from memory", [&] { cpu::forward_kernel(lowered, isa, unit); });
  measure("a call's workspace: all of the way to its kernels, and its plan", [&] { attention.workspace(call); });
  measure_with(4, "forward kernel with its key, from memory, four threads",
               [&] { cpu::forward_kernel(lowered, isa, unit); });
  try {
    on_device();
  } catch (const Error& e) {
    if (e.code != "no-device") throw;
    std::fprintf(stderr, "%s\n", e.what());
  }
}

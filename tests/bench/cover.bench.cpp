// tests/bench/cover.bench.cpp — how long covers take to derive and to list, as lines of JSON: ./bench_cover
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include <attune/attune.h>

#include "compiler/cover.h"
#include "compiler/lower.h"
#include "runtime/engines/cover/tiles.h"

namespace {

using namespace attune;
using Clock = std::chrono::steady_clock;

struct Spread {
  double low, median, high;  ///< µs: 10th, 50th and 90th of 100
};

/// At least 21 runs, and more of them for as long as 0.2 s allow.
template <class F>
Spread measure(F f) {
  std::vector<double> times;
  const auto until = Clock::now() + std::chrono::milliseconds(200);
  while (times.size() < 21 || (Clock::now() < until && times.size() < 2001)) {
    const auto start = Clock::now();
    f();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 10], times[times.size() / 2], times[times.size() * 9 / 10]};
}

void print(const char* name, const Spread& s) {
  std::printf(", \"%s_us\": {\"p10\": %.1f, \"median\": %.1f, \"p90\": %.1f}", name, s.low, s.median, s.high);
}

/// Sorted ids of documents of 1 to 2047 tokens.
std::vector<int> documents(int length) {
  std::mt19937 dice(7);
  std::vector<int> ids;
  for (int id = 0; static_cast<int>(ids.size()) < length; ++id) ids.insert(ids.end(), 1 + dice() % 2047, id);
  ids.resize(static_cast<std::size_t>(length));
  return ids;
}

void bench(const std::string& name, const std::string& mask, int length) {
  std::vector<int> ids = documents(length);
  Text text;
  text.capture("doc", Tensor(ids.data(), DType::i32, {length}));
  const compiler::LoweredMod lowered = compiler::lower(Attention{.mask = text.mask(mask)});
  const ir::Signature names = lowered.mod.signature();
  const runtime::Tiles tiles(lowered);
  runtime::Extent e;
  e.q_len = e.kv_len = length;
  const runtime::TileLists lists = tiles.lists(e);

  std::printf("{\"mask\": \"%s\", \"tokens\": %d", name.c_str(), length);
  print("derive", measure([&] { compiler::cover(lowered.mod.mask, names); }));
  print("summarise", measure([&] { runtime::Tiles{lowered}; }));
  print("list", measure([&] { tiles.lists(e); }));
  print("list_2_threads", measure([&] { tiles.lists(e, false, 2); }));
  print("list_along_q", measure([&] { tiles.lists(e, true); }));
  std::printf(", \"bytes\": %zu, \"full\": %lld, \"partial\": %lld, \"tiles\": %lld}\n", lists.bytes(),
              static_cast<long long>(lists.all), static_cast<long long>(lists.some),
              static_cast<long long>(lists.total));
  std::fflush(stdout);
}

}  // namespace

int main() {
  for (const int length : {8192, 32768, 131072, 1048576}) {
    int width = 1;
    while (width * width < length) ++width;
    const std::string w = std::to_string(width);
    bench("causal", "kv <= q", length);
    bench("window", "kv <= q && q - kv < 1024", length);
    bench("document", "doc[q] == doc[kv]", length);
    bench("document+window", "doc[q] == doc[kv] && kv <= q && q - kv < 1024", length);
    bench("prefix", "kv < 1000 || kv <= q", length);
    bench("neighbourhood", "abs(q % " + w + " - kv % " + w + ") <= 8 && abs(q / " + w + " - kv / " + w + ") <= 8",
          length);
  }
}

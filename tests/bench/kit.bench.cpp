// tests/bench/kit.bench.cpp — the kit's kernels against the machine's peaks, as lines of JSON: ./bench_kit [part of a
// name]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/codegen/kits.h"

namespace {

using namespace attune;
using namespace attune::codegen;
using namespace attune::tests;
using Clock = std::chrono::steady_clock;

/// Zeros, aligned to a cache line, as allocators align large tensors.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  std::size_t size() const { return lines_.size() * sizeof(Line); }
  std::byte* bytes() { return lines_[0].bytes; }
  float* floats() { return reinterpret_cast<float*>(bytes()); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};
Memory floats(std::int64_t count, float value = 0) {
  Memory memory(static_cast<std::size_t>(count) * sizeof(float));
  std::fill_n(memory.floats(), count, value);
  return memory;
}

/// The least of many times: other programs can only make a run slower.
double best_seconds(const std::function<void()>& f, double budget = 0.3) {
  double best = std::numeric_limits<double>::infinity(), spent = 0;
  for (int i = 0; i < 2 || spent < budget; ++i) {
    const auto start = Clock::now();
    f();
    const double took = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::min(best, took);
    spent += took;
  }
  return best;
}

/// Operations a second of independent multiply-adds, nothing else in the way.
double peak_of(const LoadedKit& kit) {
  const Peak peak = peak_object(kit.isa, kit.unit);
  const runtime::cpu::Loaded loaded(peak.object);
  auto* run = loaded.find<PeakFn>("peak");
  alignas(64) float memory[64] = {};
  constexpr std::int64_t rounds = 20000;
  return peak.flop * rounds / best_seconds([&] { run(rounds, memory); }, 0.1);
}

void measure_product(const LoadedKit& kit, std::int64_t rows, std::int64_t columns, std::int64_t k, bool keeps) {
  const std::int64_t mr = kit.tiling.mr, nr = kit.tiling.nr, per = per_unit(kit.unit);
  const std::int64_t groups = rows / mr, panels = columns / nr;
  k /= per;
  Memory a = floats(groups * mr * k), b = floats(panels * nr * k), c = floats(groups * mr * panels * nr),
         keep = floats(groups * mr, 1);
  const Product product{.a = a.bytes(),
                        .a_row = k,
                        .b = b.bytes(),
                        .b_k = nr,
                        .b_panel = nr * k,
                        .c = c.floats(),
                        .c_row = panels * nr,
                        .groups = groups,
                        .panels = panels,
                        .k = k,
                        .keep = keeps ? keep.floats() : nullptr};
  auto* function = kit.find<ProductFn>(kit_symbol::product);
  const Tiles tiles(kit);
  // Alternates with the peak's measurement, so that both see the same clock.
  double peak = 0, flops = 0;
  for (int turn = 0; turn < 5; ++turn) {
    peak = std::max(peak, peak_of(kit));
    const double seconds = best_seconds(
                               [&] {
                                 for (int i = 0; i < 20; ++i) function(&product);
                               },
                               0.1) /
                           20;
    flops = std::max(flops, 2.0 * static_cast<double>(groups * mr * panels * nr * k * per) / seconds);
  }
  std::printf("{\"bench\": \"product\", \"kit\": \"%s\", \"rows\": %lld, \"columns\": %lld, \"k\": %lld, \"keep\": %d, "
              "\"gflops\": %.1f, \"peak_gflops\": %.1f, \"percent\": %.1f}\n",
              kit.name().c_str(), static_cast<long long>(groups * mr), static_cast<long long>(panels * nr),
              static_cast<long long>(k * per), keeps, flops / 1e9, peak / 1e9, 100 * flops / peak);
}

/// Bytes of elements read, and written where the kernel writes as much as it reads.
void report_bytes(const char* bench, const LoadedKit& kit, const std::string& what, double bytes, double seconds) {
  std::printf("{\"bench\": \"%s\", \"kit\": \"%s\", %s, \"us\": %.2f, \"gbytes_per_s\": %.1f}\n", bench,
              kit.name().c_str(), what.c_str(), seconds * 1e6, bytes / seconds / 1e9);
}

/// A tile of 128 rows by d = 128 that stays in the cache.
void measure_rows(const LoadedKit& kit) {
  constexpr std::int64_t rows = 128, d = 128;
  const auto n = static_cast<std::size_t>(rows * d);
  Memory tensor = floats(rows * d), scratch = floats(rows * d), packed = floats(rows * d);
  const double of_tensor = static_cast<double>(n * size_of(kit.type)), of_scratch = static_cast<double>(n * 4);
  const double of_operand = kit.is_bf16() ? of_scratch / 2 : of_scratch;
  const std::string what = "\"rows\": 128, \"columns\": 128";
  const std::int64_t per = per_unit(kit.unit), nr = kit.tiling.nr;
  const auto run = [&](const char* symbol, auto* function, const auto& args, double bytes) {
    const double seconds = best_seconds(
                               [&] {
                                 for (int i = 0; i < 20; ++i) function(&args);
                               },
                               0.05) /
                           20;
    report_bytes(symbol, kit, what, bytes, seconds);
  };
  const LoadRows load{.from = tensor.bytes(),
                      .row = d,
                      .column = 1,
                      .rows = rows,
                      .columns = d,
                      .padded = d,
                      .factor = 1,
                      .into = scratch.bytes(),
                      .into_row = d};
  run("load_rows", kit.find<LoadRowsFn>(kit_symbol::load_rows), load, of_tensor + of_operand);
  const StoreRows store{.from = scratch.floats(),
                        .from_row = d,
                        .rows = rows,
                        .columns = d,
                        .factor = scratch.floats(),
                        .scale = 1,
                        .into = tensor.bytes(),
                        .row = d,
                        .column = 1};
  run("store_rows", kit.find<StoreRowsFn>(kit_symbol::store_rows), store, of_tensor + of_scratch);
  const PackColumns columns{.from = scratch.bytes(),
                            .from_row = d / per,
                            .rows = rows,
                            .k = d / per,
                            .into = packed.bytes(),
                            .panel = nr * d / per};
  run("pack_columns", kit.find<PackColumnsFn>(kit_symbol::pack_columns), columns, 2 * of_operand);
  const PackRows pack{.from = scratch.bytes(),
                      .from_row = d,
                      .rows = rows,
                      .columns = d,
                      .into = packed.bytes(),
                      .panel = nr * rows / per};
  run("pack_rows", kit.find<PackRowsFn>(kit_symbol::pack_rows), pack, 2 * of_operand);
  const Transpose transpose{
      .from = scratch.bytes(), .from_row = d, .rows = rows, .columns = d, .into = packed.bytes(), .into_row = rows};
  run("transpose", kit.find<TransposeFn>(kit_symbol::transpose), transpose, 2 * of_operand);
}

/// Windows of a large memory, one after another: short enough that some run undisturbed by other programs, and evicted
/// from the caches before they come again.
class Windows {
 public:
  Windows(std::size_t bytes, std::size_t window) : memory_(bytes), window_(window) {}
  std::size_t window() const { return window_; }
  const std::byte* next() {
    at_ = (at_ + window_) % memory_.size();
    return memory_.bytes() + at_;
  }

 private:
  Memory memory_;
  std::size_t window_, at_ = 0;
};

/// Keys and values in place. Alternates with the C library reading as many bytes, so that both see the same load.
void measure_decode(const LoadedKit& kit, Windows& windows, std::int64_t rows, std::int64_t d) {
  const std::int64_t count = static_cast<std::int64_t>(windows.window() / size_of(kit.type)) / d;
  const std::int64_t s_row = count + 16;  // not 16 kB, where all rows would share the same few lines of the L1 cache
  Memory q = floats(rows * d, 1), s = floats(rows * s_row, 0.5f), p = floats(rows * s_row, 0.5f),
         keep = floats(rows, 1);
  auto* const of_pairs = d % dots_columns == 0 ? kit.find<DotsFn>(kit_symbol::dots_of_pairs) : nullptr;
  auto* dots_of = of_pairs ? of_pairs : kit.find<DotsFn>(kit_symbol::dots);
  auto* weigh_of = kit.find<WeighFn>(kit_symbol::weigh);
  Dots dots{.q = q.floats(),
            .q_row = d,
            .rows = rows,
            .k = nullptr,
            .k_row = d,
            .count = count,
            .d = d,
            .s = s.floats(),
            .s_row = s_row,
            .scale = 1,
            .next = nullptr};
  Weigh weigh{.p = p.floats(),
              .p_row = s_row,
              .rows = rows,
              .v = nullptr,
              .v_row = d,
              .count = count,
              .dv = d,
              .o = q.floats(),
              .o_row = d,
              .keep = keep.floats(),
              .next = nullptr};
  const void* volatile found = nullptr;
  const auto timed = [&](const std::function<void(const std::byte*)>& f) {
    const std::byte* at = windows.next();
    const auto start = Clock::now();
    f(at);
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  double read = 1e9, of_dots = 1e9, of_weigh = 1e9;
  for (int turn = 0; turn < 400; ++turn) {
    read = std::min(read, timed([&](const std::byte* at) { found = std::memchr(at, 1, windows.window()); }));
    of_dots = std::min(of_dots, timed([&](const std::byte* at) { dots.k = at, dots_of(&dots); }));
    of_weigh = std::min(of_weigh, timed([&](const std::byte* at) { weigh.v = at, weigh_of(&weigh); }));
  }
  const auto gbytes = [&](double seconds) { return static_cast<double>(windows.window()) / seconds / 1e9; };
  std::printf("{\"bench\": \"decode\", \"kit\": \"%s\", \"rows\": %lld, \"d\": %lld, \"kbytes\": %zu, "
              "\"read_gbytes_per_s\": %.1f, \"dots_gbytes_per_s\": %.1f, \"weigh_gbytes_per_s\": %.1f}\n",
              kit.name().c_str(), static_cast<long long>(rows), static_cast<long long>(d), windows.window() >> 10,
              gbytes(read), gbytes(of_dots), gbytes(of_weigh));
}

void measure_compile() {
  for (const Isa isa : host_isas())
    for (const Unit unit : {Unit::f32, Unit::bf16}) {
      if (unit == Unit::bf16 && !has_bf16(isa)) continue;
      std::size_t bytes = 0;
      const double made = best_seconds([&] { bytes = kit_object(isa, unit, DType::bf16).size(); });
      const std::string object = kit_object(isa, unit, DType::bf16);
      const double loaded = best_seconds([&] { runtime::cpu::Loaded(object).find<void()>(kit_symbol::product); });
      std::printf("{\"bench\": \"compile\", \"isa\": \"%s\", \"unit\": \"%s\", \"object_ms\": %.2f, \"load_ms\": %.2f, "
                  "\"bytes\": %zu}\n",
                  std::string(name_of(isa)).c_str(), unit == Unit::f32 ? "f32" : "bf16", made * 1e3, loaded * 1e3,
                  bytes);
    }
}

}  // namespace

int main(int count, char** words) {
  const std::string part = count > 1 ? words[1] : "", one = count > 2 ? words[2] : "";
  const auto wanted = [&](const char* bench) { return part.empty() || part == bench; };
  const auto skipped = [&](const LoadedKit& kit) { return !one.empty() && kit.name() != one; };
  if (wanted("compile")) measure_compile();
  for (const LoadedKit& kit : kits()) {
    if (skipped(kit)) continue;
    if (wanted("product") && (kit.type == DType::f32 || kit.is_bf16()))
      for (const bool keeps : {false, true})
        for (const std::int64_t k : {64, 128, 256}) measure_product(kit, 64, 128, k, keeps);
    if (wanted("rows")) measure_rows(kit);
  }
  if (wanted("decode"))
    for (const bool cached : {true, false}) {
      constexpr std::size_t little = std::size_t{1} << 18;
      Windows windows(cached ? little : little << 10, cached ? little : little << 3);
      for (const LoadedKit& kit : kits())
        if (!kit.is_bf16() && !skipped(kit))  // in pairs: the same kernels
          for (const std::int64_t rows : {1, 4, 8}) measure_decode(kit, windows, rows, 128);
    }
}

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

/// The least of many: other programs only ever add to it.
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

#if defined(__x86_64__)

constexpr int peak_turns = 200000;

/// Independent chains of one instruction, over and over.
#define ATTUNE_CHAINS(zero, operation)                                                                            \
  {                                                                                                               \
    long n = peak_turns;                                                                                          \
    asm volatile(".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13\n" zero "\n.endr\n1:\n"                                  \
                 ".irp r,0,1,2,3,4,5,6,7,8,9,10,11,12,13\n" operation "\n.endr\n"                                 \
                 "dec %0\njnz 1b"                                                                                 \
                 : "+r"(n)::"cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                   "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");                                         \
  }

/// Operations a second of the kit's own multiply-add, nothing else in the way. Portable: a product and a sum.
double peak_of(const LoadedKit& kit) {
  constexpr int chains = 14;
  const auto flops = [&](double per_instruction, const std::function<void()>& f) {
    return per_instruction * chains * peak_turns / best_seconds(f, 0.1);
  };
  if (kit.is_bf16())
    return flops(64, [] { ATTUNE_CHAINS("vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r", "vdpbf16ps %%zmm15,%%zmm15,%%zmm\\r") });
  if (kit.isa >= Isa::avx512)
    return flops(32, [] { ATTUNE_CHAINS("vpxord %%zmm\\r,%%zmm\\r,%%zmm\\r", "vfmadd231ps %%zmm15,%%zmm15,%%zmm\\r") });
  if (kit.isa == Isa::avx2)
    return flops(16, [] { ATTUNE_CHAINS("vpxor %%ymm\\r,%%ymm\\r,%%ymm\\r", "vfmadd231ps %%ymm15,%%ymm15,%%ymm\\r") });
  return flops(4, [] {
    ATTUNE_CHAINS("xorps %%xmm\\r,%%xmm\\r",
                  ".if \\r & 1\naddps %%xmm15,%%xmm\\r\n.else\nmulps %%xmm15,%%xmm\\r\n.endif")
  });
}

#else
double peak_of(const LoadedKit&) { return std::numeric_limits<double>::infinity(); }
#endif

void measure_product(const LoadedKit& kit, std::int64_t rows, std::int64_t columns, std::int64_t k, bool keeps) {
  const std::int64_t mr = kit.tiling.mr, nr = kit.tiling.nr, per = per_unit(kit.unit);
  const std::int64_t groups = rows / mr, panels = columns / nr;
  k /= per;
  std::vector<float> a(static_cast<std::size_t>(groups * mr * k)), b(static_cast<std::size_t>(panels * nr * k)),
      c(static_cast<std::size_t>(groups * mr * panels * nr)), keep(static_cast<std::size_t>(groups * mr), 1.0f);
  const Product product{.a = a.data(),
                        .a_row = k,
                        .b = b.data(),
                        .b_k = nr,
                        .b_panel = nr * k,
                        .c = c.data(),
                        .c_row = panels * nr,
                        .groups = groups,
                        .panels = panels,
                        .k = k,
                        .keep = keeps ? keep.data() : nullptr};
  auto* function = kit.find<ProductFn>(kit_symbol::product);
  // Turns with the peak, so that both see the same clock.
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
  std::vector<float> tensor(n), scratch(n), packed(n);
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
  const LoadRows load{.from = tensor.data(),
                      .row = d,
                      .column = 1,
                      .rows = rows,
                      .columns = d,
                      .padded = d,
                      .factor = 1,
                      .into = scratch.data(),
                      .into_row = d};
  run("load_rows", kit.find<LoadRowsFn>(kit_symbol::load_rows), load, of_tensor + of_operand);
  const StoreRows store{.from = scratch.data(),
                        .from_row = d,
                        .rows = rows,
                        .columns = d,
                        .factor = scratch.data(),
                        .scale = 1,
                        .into = tensor.data(),
                        .row = d,
                        .column = 1};
  run("store_rows", kit.find<StoreRowsFn>(kit_symbol::store_rows), store, of_tensor + of_scratch);
  const PackColumns columns{.from = scratch.data(),
                            .from_row = d / per,
                            .rows = rows,
                            .k = d / per,
                            .into = packed.data(),
                            .panel = nr * d / per};
  run("pack_columns", kit.find<PackColumnsFn>(kit_symbol::pack_columns), columns, 2 * of_operand);
  const PackRows pack{.from = scratch.data(),
                      .from_row = d,
                      .rows = rows,
                      .columns = d,
                      .into = packed.data(),
                      .panel = nr * rows / per};
  run("pack_rows", kit.find<PackRowsFn>(kit_symbol::pack_rows), pack, 2 * of_operand);
  const Transpose transpose{
      .from = scratch.data(), .from_row = d, .rows = rows, .columns = d, .into = packed.data(), .into_row = rows};
  run("transpose", kit.find<TransposeFn>(kit_symbol::transpose), transpose, 2 * of_operand);
}

/// Keys and values of so many bytes, 512 to a call. Turns with plain reads of the same bytes, so that both meet the
/// same weather.
void measure_decode(const LoadedKit& kit, const std::vector<std::byte>& memory, std::int64_t rows, std::int64_t d) {
  constexpr std::int64_t at_once = 512;
  const auto element = static_cast<std::int64_t>(size_of(kit.type));
  const auto bytes = static_cast<double>(memory.size());
  const std::int64_t count = static_cast<std::int64_t>(memory.size()) / (d * element);
  std::vector<float> q(static_cast<std::size_t>(rows * d), 1), s(static_cast<std::size_t>(rows * at_once), 0.5f),
      keep(static_cast<std::size_t>(rows), 1);
  auto* dots_of = kit.find<DotsFn>(kit_symbol::dots);
  auto* weigh_of = kit.find<WeighFn>(kit_symbol::weigh);
  const auto at = [&](std::int64_t j) { return memory.data() + j * d * element; };
  const auto all_dots = [&] {
    for (std::int64_t j = 0; j < count; j += at_once) {
      const Dots dots{.q = q.data(),
                      .q_row = d,
                      .rows = rows,
                      .k = at(j),
                      .k_row = d,
                      .count = std::min(at_once, count - j),
                      .d = d,
                      .s = s.data(),
                      .s_row = at_once};
      dots_of(&dots);
    }
  };
  const auto all_weighs = [&] {
    for (std::int64_t j = 0; j < count; j += at_once) {
      const Weigh weigh{.p = s.data(),
                        .p_row = at_once,
                        .rows = rows,
                        .v = at(j),
                        .v_row = d,
                        .count = std::min(at_once, count - j),
                        .dv = d,
                        .o = q.data(),
                        .o_row = d,
                        .keep = keep.data()};
      weigh_of(&weigh);
    }
  };
  double read = 1e9, of_dots = 1e9, of_weigh = 1e9;
  const void* volatile found = nullptr;
  for (int turn = 0; turn < 12; ++turn) {
    read = std::min(read, best_seconds([&] { found = std::memchr(memory.data(), 1, memory.size()); }, 0));
    of_dots = std::min(of_dots, best_seconds(all_dots, 0));
    of_weigh = std::min(of_weigh, best_seconds(all_weighs, 0));
  }
  std::printf("{\"bench\": \"decode\", \"kit\": \"%s\", \"rows\": %lld, \"d\": %lld, \"mbytes\": %.1f, "
              "\"read_gbytes_per_s\": %.1f, \"dots_gbytes_per_s\": %.1f, \"weigh_gbytes_per_s\": %.1f}\n",
              kit.name().c_str(), static_cast<long long>(rows), static_cast<long long>(d), bytes / 0x1p20,
              bytes / read / 1e9, bytes / of_dots / 1e9, bytes / of_weigh / 1e9);
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
    for (const std::size_t bytes : {std::size_t{1} << 18, std::size_t{1} << 28}) {
      const std::vector<std::byte> memory(bytes);
      for (const LoadedKit& kit : kits())
        if (!kit.is_bf16() && !skipped(kit))  // in pairs: the same kernels
          for (const std::int64_t rows : {1, 4, 8}) measure_decode(kit, memory, rows, 128);
    }
}

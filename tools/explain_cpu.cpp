// tools/explain_cpu.cpp — attune explain --target cpu: how the CPU engine computes a call, and how near to its peak
#include <algorithm>
#include <chrono>
#include <fmt/format.h>

#include "codegen/cpu.h"
#include "codegen/parts.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cpu/peak.h"
#include "tools/explain.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Times calls on one thread, one after another, for a while.
Times measured(const Case& one, const BenchOptions& o, Data& data) {
  constexpr double seconds = 0.3;
  const ForwardTensors tensors(o, data);
  const Resources with{.executor = {.workers = 1}};
  runtime::run(one.attention, tensors.call(), with, Line{});
  Times out;
  const auto start = Clock::now();
  for (auto now = start; out.all.size() < 5 || now - start < std::chrono::duration<double>(seconds);) {
    runtime::run(one.attention, tensors.call(), with, Line{});
    const auto then = now;
    now = Clock::now();
    out.all.push_back(std::chrono::duration<double>(now - then).count());
  }
  std::ranges::sort(out.all);
  return out;
}

}  // namespace

Explained explain_cpu(const compiler::Mod& mod, const ExplainOptions& options) {
  const BenchOptions o = options.bench();
  const codegen::Isa isa = runtime::cpu::isa();
  const codegen::Unit unit = o.type() == DType::bf16 && codegen::has_bf16(isa) ? codegen::Unit::bf16
                                                                               : codegen::Unit::f32;
  const codegen::Tiling tiling = codegen::tiling(isa, unit);
  const codegen::ForwardParts parts = codegen::forward_parts(mod);
  const std::string products = unit == codegen::Unit::bf16 ? "bf16" : "f32";
  Data data;
  const Case one = std::move(bench_cases(o, data).at(0));
  const double flop = forward_flop(one, o), peak = runtime::cpu::peak_gflops(o.type());
  const double at_least = flop / (peak * 1e9);

  Explained out;
  out.json = {{"isa", std::string(name_of(isa))}};
  out.json.update(o.shape());
  out.json.update(
      {{"products", products},
       {"registers", {{"rows", tiling.mr}, {"columns", tiling.nr}, {"width", tiling.width}}},
       {"fields", {{"head", parts.head_fields()}, {"row", parts.row_fields()}, {"column", parts.col_fields()}}},
       {"masked", parts.masked},
       {"prob_linear", parts.prob_linear},
       {"flop", flop},
       {"peak_gflops_one_thread", peak},
       {"bound", {{"seconds", at_least}, {"by", "products"}}}});
  out.text = fmt::format("\non this CPU, {}\n", name_of(isa));
  const auto line = [&](std::string_view name, const std::string& text) {
    out.text += fmt::format("  {:<9}{}\n", name, text);
  };
  line("call", fmt::format("{}, B={} H={}/{} S={}x{} D={}/{}", o.dtype, o.batch, o.heads, o.of_kv_heads(), o.seq,
                           o.of_kv_seq(), o.d, o.of_dv()));
  line("products", fmt::format("of {}: {} rows by {} columns in registers of {} lanes   — the widest this CPU has, or "
                               "as ATTUNE_CPU says",
                               products, tiling.mr, tiling.nr, tiling.width));
  line("hoisted", fmt::format("{} of a head, {} of a row, {} of a column", parts.head_fields(), parts.row_fields(),
                              parts.col_fields()));
  line("mask", parts.masked ? "evaluated for the pairs of partial tiles; other tiles are full or never visited"
                            : "none to evaluate");
  if (parts.has_prob)
    line("prob", parts.prob_linear ? "a multiple of p: applied before rows are normalised"
                                   : "not a multiple of p: applied in a second pass, after rows are summed");
  line("bound", fmt::format("{:.3f} ms of one thread   — {:.2f} GFLOP for the pairs that stay, at {:.1f} GFLOP/s "
                            "measured here",
                            at_least * 1e3, flop / 1e9, peak));
  if (!options.measure) return out;
  const Times times = measured(one, o, data);
  const double gflops = flop / times.median() / 1e9;
  line("measured", fmt::format("{:.3f} ms of one thread, {:.3f} to {:.3f}   — {:.1f} GFLOP/s, {:.1f} % of the bound",
                               times.median() * 1e3, times.p10() * 1e3, times.p90() * 1e3, gflops,
                               100 * at_least / times.median()));
  out.json["measured"] = {
      {"threads", 1},
      {"runs", times.all.size()},
      {"seconds", {{"best", times.best()}, {"p10", times.p10()}, {"median", times.median()}, {"p90", times.p90()}}},
      {"gflops", gflops},
      {"percent_of_bound", 100 * at_least / times.median()}};
  return out;
}

}  // namespace attune::tools

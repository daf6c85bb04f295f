// tools/explain/explain.cpp — attune explain: the compiler's results for an Attention, and how the CPU engine computes
// a call
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/choose/card.h"
#include "codegen/cpu.h"
#include "codegen/facts/parts.h"
#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "runtime/attention/tools.h"
#include "runtime/engines/cpu/engine.h"
#include "tools/explain/explain.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

/// Times calls on one thread, one after another, for a while.
Times timed(const Case& one, const BenchOptions& o, Data& data) {
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
  const Times times = timed(one, o, data);
  const double gflops = flop / times.median() / 1e9;
  line("measured", fmt::format("{:.3f} ms of one thread, {:.3f} to {:.3f}   — {:.1f} GFLOP/s, {:.1f} % of the bound",
                               times.median() * 1e3, times.p10() * 1e3, times.p90() * 1e3, gflops,
                               100 * at_least / times.median()));
  out.json["measured"] = {{"threads", 1},
                          {"runs", times.all.size()},
                          {"seconds", times.json()},
                          {"gflops", gflops},
                          {"percent_of_bound", 100 * at_least / times.median()}};
  return out;
}

// Without a target, --measure measures on the CPU.
bool is_for_cpu(const ExplainOptions& o) { return o.target == "cpu" || (o.target == "auto" && o.measure); }

namespace {

void explain(const ExplainOptions& o) {
  const TextAttention text = built(o.text, Captures::FilesOrTypes);
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::LoweredMod lowered = compiler::lower(text.attention, &steps);
  const compiler::Mod& mod = lowered.mod;
  // Packed sequences begin at position 0.
  if ((o.target == "cuda" || is_for_cpu(o)) && !o.call.as_packed) o.call.check_position(lowered);
  std::optional<Explained> engine;
  if (o.target == "cuda") engine = explain_cuda(lowered, o);
  if (is_for_cpu(o)) engine = explain_cpu(mod, o);
  if (!o.json) {
    write_out(compiler::explain(lowered, steps));
    if (engine) write_out(engine->text);
    return;
  }
  const ir::Signature names = mod.signature();
  Json all;
  for (const auto& [name, root] :
       {std::pair{"score", mod.score}, {"mask", mod.mask}, {"prob", mod.prob}, {"sink", mod.sink}})
    if (root) all[name] = ir::print(root, names);
  all["digest"] = mod.digest().hex();
  all["rewrites"] = Json::array();
  for (const compiler::Rewrite& r : steps.rewrites)
    all["rewrites"].push_back(
        {{"rule", std::string(r.rule)}, {"from", ir::print(r.from, names)}, {"to", ir::print(r.to, names)}});
  all["affine"] = mod.fold.affine;
  all["bounded"] = mod.fold.bounded();
  if (mod.fold.row) all["row"] = ir::print(mod.fold.row, names);
  all["levels"] = {{"head", mod.levels.head.size()}, {"row", mod.levels.row.size()}, {"col", mod.levels.col.size()}};
  for (const compiler::Steps::Step& step : steps.steps)
    all["steps"].push_back({{"name", step.name}, {"nanoseconds", step.took.count()}});
  for (const compiler::Section& s : compiler::sections(lowered, steps))
    all["sections"].push_back({{"title", s.title}, {"lines", s.lines}});
  if (engine) all[is_for_cpu(o) ? "cpu" : "cuda"] = engine->json;
  all["text"] = compiler::explain(lowered, steps) + (engine ? engine->text : "");
  write_json(all, 2);
}

/// Makes the call one for a GPU of the card's compute capability.
void take_card(ExplainOptions& o) {
  std::vector<std::string> names;
  for (const codegen::Card& one : codegen::cards()) names.emplace_back(one.name);
  require_word("--card", *o.card, names);
  const int arch = codegen::card(0, *o.card).arch;
  if (o.target != "cuda" || (o.call.arch && *o.call.arch != arch))
    throw misused("--card " + *o.card, fmt::format("it is a GPU of compute capability {}.{}", arch / 10, arch % 10),
                  fmt::format("write --target cuda --card '{}' without --arch", *o.card));
  o.call.arch = arch;
}

}  // namespace

BenchOptions ExplainOptions::bench() const {
  BenchOptions out;
  static_cast<CallOptions&>(out) = call;
  out.text = text;
  if (!text.given()) out.rows = {"full"};
  out.backward = backward;
  out.kernel = call.kernel;
  return out;
}

void add_explain(CLI::App& app) {
  auto o = std::make_shared<ExplainOptions>();
  CLI::App& verb = *app.add_subcommand("explain", "how the compiler transforms an attention, and why");
  o->text.add_to(verb);
  verb.add_option("--target", o->target, "also how this engine computes a call, and what bounds it")
      ->type_name("auto|cpu|cuda");
  o->call.add_to(verb);
  const std::string group = "The call";
  verb.add_flag("--backward", o->backward, "with --target cuda: of the gradients")->group(group);
  verb.add_option("--grads", o->grads,
                  "with --backward: captured tensors whose gradients are asked for; all if left out")
      ->type_name("all|none|NAME+...")
      ->group(group);
  verb.add_option("--card", o->card, "with --target cuda: the GPU whose data sheet bounds it, such as H100")
      ->type_name("NAME")
      ->group(group);
  verb.add_flag("--measure", o->measure, "also measure it here: on the CPU unless --target cuda");
  verb.add_flag("--json", o->json, "the same as JSON");
  verb.footer(
      "Shows what attune derived from an attention: simplified expressions and the rules used, what a tile keeps, what "
      "the softmax makes free, what is hoisted, derivatives.\n"
      "\n"
      "With --target cuda: the kernels that support the call, how NVRTC compiled each, how many of its blocks an SM "
      "holds and what limits them, which one is chosen and why others are not, and what bounds the chosen one by the "
      "card's data sheet: its products, exponentials, random numbers or memory, and whether it fits; next to it the "
      "speed of such calls in docs/results, if they were measured. No GPU is needed; NVRTC is. With --backward "
      "the same of the gradients, and how each captured tensor's is summed, and in what memory. With --target cpu: how "
      "the CPU engine computes it, and the time its products need at the peak of one core, measured.\n"
      "Examples:\n"
      "  attune explain --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q && doc[q] == doc[kv]' \\\n"
      "    --capture 'doc=i32[8192]'\n"
      "  attune explain --mask 'kv <= q' --target cpu --dtype f32 --heads 1 --seq 512 --measure\n"
      "  attune explain --mask 'kv <= q' --target cuda --card H100 --d 64\n"
      "  attune explain --score 's + slope[h] * f32(kv - q)' --capture 'slope=f32[16]' --target cuda --arch 90 \\\n"
      "    --backward");
  verb.callback([o, &verb] {
    require_word("--target", o->target, std::array<std::string, 3>{"auto", "cpu", "cuda"});
    o->call.check();
    o->bench().check();
    for (const auto& [option, given] : {std::pair{"--backward", o->backward}, {"--arch", o->call.arch.has_value()}})
      if (given && o->target != "cuda") throw needs_gpu(option);
    if (o->card) take_card(*o);
    o->call.settle(verb.count("--seq") > 0);
    explain(*o);
  });
}

}  // namespace attune::tools

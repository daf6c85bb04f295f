// tools/explain.cpp — attune explain: the compiler's results for an Attention
#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "codegen/bound.h"
#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "tools/explain.h"
#include "tools/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;

// Without a target, --measure measures on the CPU.
bool is_for_cpu(const ExplainOptions& o) { return o.target == "cpu" || (o.target == "auto" && o.measure); }

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

/// The call is for a GPU of the card's compute capability.
void take_card(ExplainOptions& o) {
  std::vector<std::string> names;
  for (const codegen::Card& one : codegen::cards()) names.emplace_back(one.name);
  require_word("--card", *o.card, names);
  const int arch = codegen::card(0, *o.card).arch;
  if (o.target != "cuda" || (o.call.arch && *o.call.arch != arch))
    throw Error("bad-usage", "the command line cannot be read", {.name = "--card " + *o.card},
                fmt::format("it is a GPU of compute capability {}.{}", arch / 10, arch % 10),
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
  o->text.add_bare_to(verb);
  o->text.add_to(verb, Captures::FilesOrTypes);
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
    if (o->backward && o->target != "cuda")
      throw Error("bad-usage", "the command line cannot be read", {.name = "--backward"},
                  "it is about the kernels of a GPU", "add --target cuda, or leave it out");
    if (o->call.arch && o->target != "cuda")
      throw Error("bad-usage", "the command line cannot be read", {.name = "--arch"}, "it is of a GPU",
                  "add --target cuda, or leave it out");
    if (o->card) take_card(*o);
    o->call.settle(verb.count("--seq") > 0);
    explain(*o);
  });
}

}  // namespace attune::tools

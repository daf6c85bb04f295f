// tools/mod/diff.cpp — attune diff: how two mods differ in each stage: ir, derivatives, levels, cover, plan, source
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "codegen/choose/choose.h"
#include "codegen/source/source.h"
#include "compiler/explain.h"
#include "compiler/lower.h"
#include "tools/options/call_options.h"
#include "tools/options/text.h"
#include "tools/output/line_diff.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

using Json = nlohmann::ordered_json;
using Of = compiler::Section::Of;

/// The options of one side alone.
struct Side {
  std::optional<std::string> mod;  ///< an expression, or a file
  TextOptions text;
};

struct DiffOptions {
  TextOptions shared;
  Side a, b;
  DeviceCall call;
  std::vector<std::string> only;
  std::string color = "auto";
  bool json = false, quiet = false;
};

constexpr std::array stages_of_diff{"ir", "derivatives", "levels", "cover", "plan", "source"};

/// One stage's result for a mod.
struct Stage {
  std::string name, text;
};

bool is_file(const std::string& mod) { return mod.ends_with(".mod"); }

/// Shared expressions apply unless a side has its own.
TextAttention attention_of(const DiffOptions& o, const Side& side) {
  TextOptions own = side.mod && is_file(*side.mod) ? read_mod(*side.mod) : TextOptions{};
  if (side.mod && !is_file(*side.mod)) own.bare = side.mod;
  for (const auto& [word, member] : runtime::written_parts)
    if (side.text.*member) own.*member = side.text.*member;
  for (const auto& [word, member] : assignments)
    (own.*member).insert((own.*member).begin(), (o.shared.*member).begin(), (o.shared.*member).end());
  const Attention alone = build(own, Captures::FilesOrTypes).attention;
  if (!bool(alone.score)) own.score = o.shared.score;
  if (!bool(alone.mask)) own.mask = o.shared.mask;
  if (!bool(alone.prob)) own.prob = o.shared.prob;
  if (!bool(alone.sink)) own.sink = o.shared.sink;
  return build(own, Captures::FilesOrTypes);
}

std::string plan_of(const codegen::KernelSpec& spec, const codegen::CallKind& kind,
                    const codegen::KernelChoices& choices) {
  std::string out = fmt::format("compute capability {}.{}, {}, D={}/{}\n", spec.arch / 10, spec.arch % 10,
                                name_of(spec.dtype), spec.d, spec.dv);
  out += fmt::format("kind    {}, {}, {}\n", name_of(kind.cover), name_of(kind.mod), name_of(kind.length));
  const char* word = "first";
  for (const codegen::KernelChoice& c : choices.choices) {
    out += fmt::format("{:<7} {}, {} threads, {} bytes of shared memory\n", word, codegen::variant_of(c.plan).text(),
                       c.threads, c.shared_bytes);
    word = "then";
  }
  if (!choices.refused.empty()) out += fmt::format("note    {}\n", choices.refused);
  for (const std::string& note : choices.story) out += fmt::format("note    {}\n", note);
  return out;
}

class Stages {
 public:
  Stages(const DiffOptions& o, const Side& side) : o_(o), text_(attention_of(o, side)) {}

  std::vector<Stage> operator()() {
    const compiler::Mod written = compiler::trace(text_.attention).mod;
    const compiler::LoweredMod lowered = compiler::lower(text_.attention);
    const compiler::Mod& mod = lowered.mod;
    if (wants("ir")) {
      add("written", written.text());
      add("simplified", mod.text());
    }
    std::string derivatives, levels, cover;
    for (const compiler::Section& s : compiler::sections(lowered, {})) {
      if (s.of == Of::Derivatives) derivatives += s.lines;
      if (s.of == Of::Free || s.of == Of::Levels) levels += s.lines;
      if (s.of == Of::Cover) cover += s.lines;
    }
    if (wants("derivatives")) add("derivatives", derivatives);
    if (wants("levels")) add("levels", levels);
    if (wants("cover")) add("cover", cover.empty() ? "  everything\n" : cover);
    if (wants("plan") || wants("source")) device(lowered);
    return std::move(out_);
  }

 private:
  bool wants(const char* stage) const { return o_.only.empty() || std::ranges::find(o_.only, stage) != o_.only.end(); }
  void add(std::string name, std::string text) { out_.push_back({std::move(name), std::move(text)}); }

  void device(const compiler::LoweredMod& lowered) {
    const codegen::CallChoices call = codegen::call_choices(lowered, o_.call.spec(lowered));
    const codegen::WayChoices& one = call.ways[0];
    if (wants("plan")) add("plan", plan_of(one.call.spec, one.kind, one.choices));
    if (!wants("source")) return;
    add("source", codegen::kernel_source(one.parts, one.choices.choices[0].plan).text);
    add("source of lists",
        one.parts.facts.listed
            ? codegen::cover_source(lowered, one.call.spec.strides.offsets64, one.call.spec.arch).text
            : "");
  }

  const DiffOptions& o_;
  TextAttention text_;
  std::vector<Stage> out_;
};

bool is_coloured(const DiffOptions& o) { return o.color == "always" || (o.color == "auto" && ::isatty(STDOUT_FILENO)); }

/// Returns whether all stages give the same result for both.
bool diff(const DiffOptions& o) {
  const std::vector<Stage> a = Stages(o, o.a)(), b = Stages(o, o.b)();
  bool same = true;
  std::vector<std::string> alike;
  Json all{{"same", true}, {"stages", Json::array()}};
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool here = a[i].text == b[i].text;
    same &= here;
    if (here && !a[i].text.empty()) alike.push_back(a[i].name);
    const auto text = [&](bool colour) {
      return unified(diff_lines(a[i].text, b[i].text), "A " + a[i].name, "B " + b[i].name, 3, colour);
    };
    if (o.quiet) continue;
    if (o.json)
      all["stages"].push_back(
          {{"stage", a[i].name}, {"same", here}, {"a", a[i].text}, {"b", b[i].text}, {"diff", text(false)}});
    else
      write_out(text(is_coloured(o)));
  }
  all["same"] = same;
  if (o.quiet) return same;
  if (o.json)
    write_json(all, 2);
  else if (!alike.empty())
    print_out("the same: {}\n", fmt::join(alike, ", "));
  return same;
}

void add_side(CLI::App& verb, const std::string& letter, Side& side) {
  const std::string group = letter == "a" ? "A alone" : "B alone";
  for (const auto& [name, member] : runtime::written_parts)
    verb.add_option(fmt::format("--{}-{}", letter, name), side.text.*member, fmt::format("its {}", name))
        ->type_name("EXPR")
        ->group(group);
}

}  // namespace

void add_diff(CLI::App& app) {
  auto o = std::make_shared<DiffOptions>();
  CLI::App& verb = *app.add_subcommand("diff", "the differences between two mods, at each stage of the compiler");
  verb.add_option("A", o->a.mod, "a mod: an expression (a mask if it is a Bool, else a score), or a FILE.mod")
      ->type_name("EXPR|FILE.mod");
  verb.add_option("B", o->b.mod, "another")->type_name("EXPR|FILE.mod");
  add_side(verb, "a", o->a);
  add_side(verb, "b", o->b);
  o->shared.add_options_to(verb, Captures::FilesOrTypes);
  o->call.add_to(verb);
  std::string words = fmt::format("{}", fmt::join(stages_of_diff, "|"));
  add_words(verb, "--only", o->only, "only these stages, separated by commas")->type_name(words);
  verb.add_option("--color", o->color, "auto: on a terminal")->type_name("auto|always|never");
  verb.add_flag("--quiet", o->quiet, "print nothing; only set the exit status");
  verb.add_flag("--json", o->json, "as JSON, with both texts of each stage");
  verb.footer(
      "Shows as unified diffs where B compiles differently from A: the expressions as they are "
      "written and simplified, their derivatives, what the softmax makes free and what is hoisted, what a tile keeps, "
      "which kernels of a GPU would be tried, and the CUDA source that the first of them becomes. No GPU is needed.\n"
      "\n"
      "Options without a letter apply to both sides; those of a side come first. "
      "A file has a line for each: `score EXPR`, `mask EXPR`, `let NAME=EXPR`, `capture NAME=f32[16]`, "
      "`param NAME=NUMBER`. `attune repl` saves such files.\n"
      "Examples:\n"
      "  attune diff 'kv <= q' 'kv <= q && q - kv < 1024'\n"
      "  attune diff --a-score 's + 1.0f' --b-score s --mask 'kv <= q' --only source\n"
      "  attune diff 's * slope[h]' 's + slope[h]' --capture 'slope=f32[16]' --only ir,derivatives --json\n"
      "Exit:\n"
      "  1  they differ in a stage that was compared");
  verb.callback([o, &verb] {
    // An empty mod means that the side has only the shared expressions.
    for (Side* side : {&o->a, &o->b})
      if (side->mod == "") side->mod.reset();
    o->call.check();
    o->call.settle(verb.count("--seq") > 0);
    require_word("--color", o->color, std::array<std::string, 3>{"auto", "always", "never"});
    const std::vector<std::string> known(stages_of_diff.begin(), stages_of_diff.end());
    for (const std::string& stage : o->only) require_word("--only", stage, known);
    if (!o->a.mod && !o->b.mod && !o->a.text.given() && !o->b.text.given())
      throw Error("no-expression", "attune diff has nothing to compare", {}, "neither A nor B is given",
                  "write attune diff 'kv <= q' 'kv < q', or use --a-mask and --b-mask");
    if (!diff(*o)) throw CLI::RuntimeError(1);
  });
}

}  // namespace attune::tools

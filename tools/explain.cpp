// tools/explain.cpp — attune explain: what the compiler makes of an Attention
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "tools/text.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

void explain(const TextOptions& options, bool json) {
  const TextAttention text = build(options, Captures::FilesOrTypes);
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::Mod mod = compiler::lower(text.attention, &steps).mod;
  if (!json) {
    std::fputs(compiler::explain(mod, steps).c_str(), stdout);
    return;
  }
  const ir::Signature names = mod.signature();
  nlohmann::ordered_json all;
  for (const auto& [name, root] :
       {std::pair{"score", mod.score}, {"mask", mod.mask}, {"prob", mod.prob}, {"sink", mod.sink}})
    if (root) all[name] = ir::print(root, names);
  all["digest"] = mod.digest().hex();
  all["rewrites"] = nlohmann::ordered_json::array();
  for (const compiler::Rewrite& r : steps.rewrites)
    all["rewrites"].push_back(
        {{"rule", std::string(r.rule)}, {"from", ir::print(r.from, names)}, {"to", ir::print(r.to, names)}});
  all["affine"] = mod.fold.affine;
  all["bounded"] = mod.fold.bounded();
  if (mod.fold.row) all["row"] = ir::print(mod.fold.row, names);
  all["levels"] = {{"head", mod.levels.head.size()}, {"row", mod.levels.row.size()}, {"col", mod.levels.col.size()}};
  for (const compiler::Steps::Step& step : steps.steps)
    all["steps"].push_back({{"name", step.name}, {"nanoseconds", step.took.count()}});
  all["text"] = compiler::explain(mod, steps);
  std::puts(all.dump(2).c_str());
}

}  // namespace

void add_explain(CLI::App& app) {
  auto options = std::make_shared<TextOptions>();
  auto json = std::make_shared<bool>(false);
  CLI::App& verb = *app.add_subcommand("explain", "what the compiler makes of an attention, and why");
  verb.add_option("EXPR", options->bare, "a mask if it is a Bool, else a score");
  options->add_to(verb, Captures::FilesOrTypes);
  verb.add_flag("--json", *json, "as JSON");
  verb.footer("Example:\n"
              "  attune explain --score '30.0f * tanh(s / 30.0f)' --mask 'kv <= q && doc[q] == doc[kv]' \\\n"
              "    --capture 'doc=i32[8192]'");
  verb.callback([=] {
    require_expression(*options, "explain");
    explain(*options, *json);
  });
}

}  // namespace attune::tools

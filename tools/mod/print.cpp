// tools/mod/print.cpp — attune print and attune grad: expressions as attune reads them and simplified, and their
// derivatives
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "tools/options/text.h"
#include "tools/output/output.h"
#include "tools/verbs.h"

namespace attune::tools {
namespace {

void print(const TextOptions& options, bool json) {
  const TextAttention text = built(options, Captures::FilesOrTypes);
  compiler::BoundMod traced = compiler::trace(text.attention);
  const compiler::Mod written = traced.mod;
  const compiler::Mod lowered = compiler::lower(std::move(traced)).mod;
  const ir::Signature names = written.signature();
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  const auto show = [&](const char* name, bool asked, const ir::Expr& before, const ir::Expr& after) {
    if (!asked) return;
    const std::string as_written = ir::print(before, names), simplified = ir::print(after, names);
    all[name] = {{"text", as_written}, {"simplified", simplified}, {"digest", before->digest.hex()}};
    if (json) return;
    print_out("{:<11} {}\n", name, as_written);
    if (simplified != as_written) print_out("{:<11} {}\n", "simplified", simplified);
  };
  show("score", bool(text.attention.score), written.score, lowered.score);
  show("mask", bool(text.attention.mask), written.mask, lowered.mask);
  show("prob", bool(text.attention.prob), written.prob, lowered.prob);
  show("sink", bool(text.attention.sink), written.sink, lowered.sink);
  if (json) write_json(all, 2);
}

/// Declares an attention and --json, which `act` gets.
void takes_mod(CLI::App& verb, void (*act)(const TextOptions& options, bool json),
               const std::string& what = TextOptions::any_bare) {
  auto options = std::make_shared<TextOptions>();
  auto json = std::make_shared<bool>(false);
  options->add_to(verb, what);
  verb.add_flag("--json", *json, "as JSON");
  verb.callback([=, &verb] {
    require_expression(*options, verb.get_name());
    act(*options, *json);
  });
}

}  // namespace

void add_print(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("print", "expressions as attune reads them, and simplified");
  takes_mod(verb, print);
  verb.footer("Shows each expression as attune reads it, and, where that differs, what the compiler's rewrite rules "
              "make of it. "
              "Captures need no data: NAME=f32[16] declares one.\n"
              "Examples:\n"
              "  attune print 'kv <= q && q - kv < 1024'\n"
              "  attune print --let 'd=kv - q' --score 's + slope[h] * f32(d)' --capture 'slope=f32[16]' --json");
}

namespace {

/// One expression, and the name of its derivative.
struct Component {
  const char* name;
  bool asked;
  const char* by;        ///< "" for a sink, which has none
  const char* upstream;  ///< the factor of all terms of captured gradients
  const compiler::Derivative& derivative;
};

void grad(const TextOptions& options, bool json) {
  const TextAttention text = built(options, Captures::FilesOrTypes);
  if (options.bare && bool(text.attention.mask))
    throw Error("no-derivative", "a mask has no derivative", {.name = "expression", .line = 0, .text = *options.bare},
                "it is a Bool: a pair stays or it does not", "take the gradient of a score");
  const compiler::Mod mod = compiler::lower(text.attention).mod;
  const ir::Signature names = mod.signature();
  const auto& a = text.attention;
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const Component& part :
       {Component{"score", bool(a.score), "d score / d s", "the gradient of the score", mod.dscore},
        Component{"prob", bool(a.prob), "d prob / d p", "the gradient of prob(p)", mod.dprob},
        Component{"sink", bool(a.sink), "", "the gradient of the sink", mod.dsink}}) {
    if (!part.asked) continue;
    nlohmann::ordered_json& entry = all[part.name];
    entry["captures"] = nlohmann::ordered_json::array();
    if (*part.by) {
      const std::string by = ir::print_derivative(part.derivative.by, names);
      entry["by"] = by;
      if (!json) print_out("{} = {}\n", part.by, by);
    }
    for (const compiler::Scatter& scatter : part.derivative.captures) {
      const std::string term = compiler::print(scatter, mod);
      entry["captures"].push_back({{"capture", mod.captures[scatter.capture].name}, {"term", term}});
      if (!json) print_out("{}   times {}\n", term, part.upstream);
    }
  }
  if (json) write_json(all, 2);
}

}  // namespace

void add_grad(CLI::App& app) {
  CLI::App& verb = *app.add_subcommand("grad", "the derivative of an expression, and of the captures it reads");
  takes_mod(verb, grad, "a score");
  verb.footer(
      "Shows the derivative of a score by s, of a prob mod by p, and for each captured tensor what is added to its "
      "gradient for every pair: the element, and what the upstream gradient is multiplied by.\n"
      "Examples:\n"
      "  attune grad 's + slope[h] * f32(kv - q)' --capture 'slope=f32[16]'\n"
      "  attune grad 'c * tanh(s / c)' --param c=30.0 --json");
}

}  // namespace attune::tools

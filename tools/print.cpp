// tools/print.cpp — attune print: expressions as attune reads them, and simplified
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

#include "compiler/lower.h"
#include "ir/print.h"
#include "tools/output.h"
#include "tools/text.h"
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

}  // namespace

void add_print(CLI::App& app) {
  auto options = std::make_shared<TextOptions>();
  auto json = std::make_shared<bool>(false);
  CLI::App& verb = *app.add_subcommand("print", "expressions as attune reads them, and simplified");
  options->add_bare_to(verb);
  options->add_to(verb, Captures::FilesOrTypes);
  verb.add_flag("--json", *json, "as JSON");
  verb.footer("Shows each expression as attune reads it, and, where that differs, what the compiler's rewrite rules "
              "make of it. "
              "Captures need no data: NAME=f32[16] declares one.\n"
              "Examples:\n"
              "  attune print 'kv <= q && q - kv < 1024'\n"
              "  attune print --let 'd=kv - q' --score 's + slope[h] * f32(d)' --capture 'slope=f32[16]' --json");
  verb.callback([=] {
    require_expression(*options, "print");
    print(*options, *json);
  });
}

}  // namespace attune::tools

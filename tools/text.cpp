// tools/text.cpp — the options of verbs that take an Attention as text
#include "tools/text.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>

#include "runtime/offline/shape.h"
#include "tools/mod_file.h"

namespace attune::tools {

void TextOptions::add_to(CLI::App& verb, Captures allowed) {
  const std::string group = "The attention";
  verb.add_option("--score", score, "what becomes of s = scale * (q . k)")->type_name("EXPR")->group(group);
  verb.add_option("--mask", mask, "which pairs stay")->type_name("EXPR")->group(group);
  verb.add_option("--prob", prob, "what becomes of a probability p")->type_name("EXPR")->group(group);
  verb.add_option("--sink", sink, "a logit that joins the softmax's denominator")->type_name("EXPR")->group(group);
  verb.add_option("--let", lets, "a named sub-expression for all of the above, in order")
      ->type_name("NAME=EXPR")
      ->allow_extra_args(false)
      ->group(group);
  verb.add_option("--capture", captures,
                  allowed == Captures::Files ? "a captured tensor" : "a captured tensor: a file, or a type and shape")
      ->type_name(allowed == Captures::Files ? "NAME=FILE.npy" : "NAME=FILE.npy|NAME=f32[16]")
      ->allow_extra_args(false)
      ->group(group);
  verb.add_option("--param", params, "a scalar argument: 2 is an Int, 2.0 a Float")
      ->type_name("NAME=NUMBER")
      ->allow_extra_args(false)
      ->group(group);
  // Behind the others: they have their values when this one's callback runs.
  verb.add_option_function<std::string>(
          "--mod", [this](const std::string& file) { put_before(*this, read_mod(file)); },
          "a file of lines such as `mask kv <= q`, as repl's :save writes it; options replace its lines")
      ->type_name("FILE")
      ->group(group);
}

void TextOptions::add_bare_to(CLI::App& verb, const std::string& what) { verb.add_option("EXPR", bare, what); }

CLI::Option& ExactOption::add_to(CLI::App& verb) {
  const auto row = std::ranges::find(runtime::shape_rows(), "exact", &runtime::ShapeRow::name);
  return *verb.add_option("--exact", word, fmt::format("on a GPU: {}", row->meaning))->type_name("true|false");
}

void ExactOption::check() const {
  if (word) require_word("--exact", *word, std::array<std::string, 2>{"true", "false"});
}

std::optional<bool> ExactOption::asked() const {
  if (!word) return std::nullopt;
  return *word == "true";
}

void require_expression(const runtime::Written& o, const std::string& verb) {
  if (o.given()) return;
  throw Error("no-expression", fmt::format("attune {} has nothing to work on", verb), {}, "no expression is given",
              fmt::format("write attune {} 's + 1.0f', or use --score, --mask, --prob or --sink", verb));
}

double number(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc{} && stop == text.data() + text.size()) return value;
  throw Error("bad-number", fmt::format("{} is not followed by a number", option),
              {.name = option, .line = 0, .text = text, .begin = 0, .end = text.size()}, "a number is expected",
              fmt::format("write {} 0.125", option));
}

}  // namespace attune::tools

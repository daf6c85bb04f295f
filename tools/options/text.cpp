// tools/options/text.cpp — the options of verbs that take an Attention as text, and a mod as a small file
#include "tools/options/text.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <sstream>
#include <utility>

#include "compiler/trace.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "runtime/attention/offline/shape.h"
#include "runtime/machine/files.h"
#include "runtime/platform/emulated/emulated.h"

namespace attune::tools {

void TextOptions::add_options_to(CLI::App& verb, Captures allowed) {
  const std::string group = "The attention";
  verb.add_option("--score", score, "changes s = scale * (q . k)")->type_name("EXPR")->group(group);
  verb.add_option("--mask", mask, "which pairs stay")->type_name("EXPR")->group(group);
  verb.add_option("--prob", prob, "changes a probability p")->type_name("EXPR")->group(group);
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
  // Last, so that the other options have their values when this callback runs.
  verb.add_option_function<std::string>(
          "--mod", [this](const std::string& file) { put_before(*this, read_mod(file)); },
          "a file of lines such as `mask kv <= q`, as repl's :save writes it; options replace its lines")
      ->type_name("FILE")
      ->group(group);
}

namespace {

/// Warns that "`1 / 2` is 0": a division of Ints whose first operand is smaller.
void tell_zero_quotients(const compiler::Mod& mod) {
  const ir::Signature names = mod.signature();
  for (const ir::Expr& root : {mod.score, mod.mask, mod.prob, mod.sink}) {
    if (!root) continue;
    for (const ir::Expr& node : ir::in_order(root)) {
      if (node->op != ir::Op::Div || node->type != ir::Type::I32) continue;
      const ir::Expr &above = node->args[0], &below = node->args[1];
      if (!ir::is_literal(above) || !ir::is_literal(below) || ir::is_literal(above, 0)) continue;
      if (std::abs(ir::literal_value(*above)) >= std::abs(ir::literal_value(*below))) continue;
      fmt::print(stderr, "attune: `{}` is 0, since both are Ints; write {}.0 / {}.0 for Floats\n",
                 ir::print(node, names), ir::print(above, names), ir::print(below, names));
    }
  }
}

void tell_unread(const std::string& kind, const std::vector<std::string>& declared, const auto& read) {
  for (const std::string& one : declared) {
    const std::string name = one.substr(0, one.find('='));
    if (std::ranges::none_of(read, [&](const auto& slot) { return slot.name == name; }))
      fmt::print(stderr, "attune: no expression reads the {} `{}`\n", kind, name);
  }
}

}  // namespace

TextAttention built(const TextOptions& options, Captures allowed, const runtime::MakeCapture& make,
                    const Device& device) {
  TextAttention out = build(options, allowed, make, device);
  const compiler::Mod mod = compiler::trace(out.attention).mod;
  tell_zero_quotients(mod);
  tell_unread("parameter", options.params, mod.params);
  tell_unread("captured tensor", options.captures, mod.captures);
  return out;
}

void tell_doubts(const TextOptions& options) {
  if (options.given()) built(options, Captures::FilesOrTypes);
}

void TextOptions::add_to(CLI::App& verb, const std::string& what) {
  verb.add_option("EXPR", bare, what);
  add_options_to(verb, Captures::FilesOrTypes);
}

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

Error misused(const std::string& option, std::string why, std::string fix) {
  return {"bad-usage", "the command line cannot be read", {.name = option}, std::move(why), std::move(fix)};
}

Error needs_gpu(const std::string& option) {
  return misused(option, "it is for kernels of a GPU", "add --target cuda, or leave it out");
}

void require_expression(const runtime::Written& o, const std::string& verb) {
  if (o.given()) return;
  throw Error("no-expression", fmt::format("attune {} has nothing to work on", verb), {}, "no expression is given",
              fmt::format("write attune {} 's + 1.0f', or use --score, --mask, --prob or --sink", verb));
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t end = text.find(at);
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

CLI::Option* add_words(CLI::App& verb, const std::string& name, std::vector<std::string>& into,
                       const std::string& meaning) {
  return verb.add_option_function<std::vector<std::string>>(
      name,
      [&into](const std::vector<std::string>& lists) {
        for (const std::string& list : lists)
          for (std::string& word : split(list, ','))
            if (!word.empty()) into.push_back(std::move(word));
        if (into.empty()) into.emplace_back();
      },
      meaning);
}

CLI::Option* add_call_type(CLI::App& verb, std::string& into, const std::string& otherwise) {
  return verb.add_option("--dtype", into, fmt::format("of q, k, v and o; {}with e4m3, o is bf16", otherwise))
      ->type_name("f32|f16|bf16|e4m3");
}

DType call_type(const std::string& word, const std::string& option) {
  constexpr std::array types{DType::f32, DType::f16, DType::bf16, DType::e4m3};
  const auto found = std::ranges::find(types, word, [](DType type) { return name_of(type); });
  if (found != types.end()) return *found;
  std::vector<std::string> words;
  for (const DType type : types) words.emplace_back(name_of(type));
  require_word(option, word, words);
  throw Bug("a type is spelt in an unknown way");
}

namespace {

Error bad_size(const std::string& option, const std::string& text, std::string why) {
  return Error("bad-size", fmt::format("{} cannot be {}", option, text),
               {.name = option, .line = 0, .text = text, .begin = 0, .end = text.size()}, std::move(why),
               "see --help of the verb");
}

}  // namespace

void require_size(const std::string& option, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (least <= value && value <= most) return;
  throw bad_size(option, std::to_string(value), fmt::format("it is a whole number from {} to {}", least, most));
}

void require_seconds(const std::string& option, double value) {
  if (value > 0 && std::isfinite(value)) return;
  throw bad_size(option, fmt::to_string(value), "it is a finite number above 0, in seconds");
}

double number(const std::string& option, const std::string& text) {
  double value = 0;
  const auto [stop, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status == std::errc{} && stop == text.data() + text.size()) return value;
  throw Error("bad-number", fmt::format("{} is not followed by a number", option),
              {.name = option, .line = 0, .text = text, .begin = 0, .end = text.size()}, "a number is expected",
              fmt::format("write {} 0.125", option));
}

using runtime::written_parts;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

namespace {

/// The NAME in NAME=VALUE.
std::string_view name_in(std::string_view assignment) { return trimmed(assignment.substr(0, assignment.find('='))); }

/// The key that a line assigns: mask, or capture slope.
std::string given_by(std::string_view line) {
  const std::string_view word = line.substr(0, line.find_first_of(" \t"));
  const bool named = std::ranges::any_of(assignments, [&](const auto& one) { return word == one.word; });
  return named ? fmt::format("{} {}", word, name_in(trimmed(line.substr(word.size())))) : std::string(word);
}

}  // namespace

std::vector<std::string> mod_words() {
  std::vector<std::string> out;
  for (const auto& [word, member] : written_parts) out.push_back(word);
  for (const auto& [word, member] : assignments) out.push_back(word);
  return out;
}

bool add_to_mod(TextOptions& mod, std::string_view line) {
  line = trimmed(line);
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view word = line.substr(0, end), rest = trimmed(line.substr(end));
  for (const auto& [name, member] : written_parts)
    if (word == name) {
      mod.*member = std::string(rest);
      return true;
    }
  for (const auto& [name, member] : assignments)
    if (word == name) {
      std::vector<std::string>& all = mod.*member;
      const auto old = std::ranges::find(all, name_in(rest), [](const std::string& one) { return name_in(one); });
      if (old != all.end())
        *old = std::string(rest);
      else
        all.emplace_back(rest);
      return true;
    }
  return false;
}

TextOptions read_mod(const std::filesystem::path& path) {
  std::istringstream file(runtime::read_text(path, "name a file of a mod"));
  TextOptions out;
  std::set<std::string, std::less<>> given;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view text = trimmed(line);
    if (text.empty() || text.starts_with('#')) continue;
    const std::string what = given_by(text);
    const auto at = [&, line = line](std::string_view word) {
      const std::size_t begin = line.find(word);
      return Place{.name = path.string(), .line = number, .text = line, .begin = begin, .end = begin + word.size()};
    };
    if (add_to_mod(out, text)) {
      if (given.insert(what).second) continue;
      throw Error("bad-mod", fmt::format("`{}` is given twice", what), at(trimmed(text)),
                  "an earlier line of the file gives it too", "leave one of the lines out");
    }
    const std::string word(text.substr(0, text.find(' ')));
    const std::vector<std::string> words = mod_words();
    const auto near = ir::nearest(word, words);
    throw Error("bad-mod", fmt::format("a mod has no `{}`", word), at(word),
                fmt::format("a line begins with one of {}", fmt::join(words, ", ")),
                near ? fmt::format("did you mean {}?", *near) : "write, for example: mask kv <= q");
  }
  return out;
}

void put_before(TextOptions& mod, const TextOptions& file) {
  for (const auto& [word, member] : written_parts)
    if (!(mod.*member)) mod.*member = file.*member;
  for (const auto& [word, member] : assignments) {
    std::vector<std::string> all = file.*member;
    for (const std::string& own : mod.*member) {
      const auto old = std::ranges::find(all, name_in(own), [](const std::string& one) { return name_in(one); });
      if (old != all.end())
        *old = own;
      else
        all.push_back(own);
    }
    mod.*member = std::move(all);
  }
}

std::string mod_text(const TextOptions& mod) {
  std::string out;
  for (const auto& [word, member] : assignments)
    for (const std::string& one : mod.*member) out += fmt::format("{} {}\n", word, one);
  for (const auto& [word, member] : written_parts)
    if (mod.*member) out += fmt::format("{} {}\n", word, *(mod.*member));
  return out;
}

std::vector<std::string> mod_arguments(const TextOptions& mod) {
  std::vector<std::string> out;
  for (const auto& [word, member] : assignments)
    for (const std::string& one : mod.*member) out.push_back(fmt::format("--{}={}", word, one));
  for (const auto& [word, member] : written_parts)
    if (mod.*member) out.push_back(fmt::format("--{}={}", word, *(mod.*member)));
  if (mod.bare) out.push_back("--score=" + *mod.bare);
  return out;
}

void take_target(std::string& target) {
  if (!runtime::emulated::names_emulated(target)) return;
  runtime::emulated::emulate(runtime::emulated::gpu_of(target));
  target = "cuda";
}

}  // namespace attune::tools

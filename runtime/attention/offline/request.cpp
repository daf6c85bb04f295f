// runtime/attention/offline/request.cpp — a request for a kernel, as a line of a record and as the command that
// compiles it
#include "runtime/attention/offline/request.h"

#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "compiler/spell.h"

namespace attune::runtime {
namespace {

std::string quoted(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  return shell_quoted(word);
}

/// Only the value's type matters.
std::string param_text(ir::Type type, double value) {
  if (!std::isfinite(value)) value = 0;
  if (type != ir::Type::F32) return fmt::format("{}", static_cast<std::int64_t>(value));
  std::string out = fmt::format("{}", static_cast<float>(value));
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

/// Calls `said` with the name and the text of each expression.
template <class F>
void parts(const Request& request, F said) {
  for (const auto& [name, member] : written_parts)
    if (request.mod.*member) said(name, *(request.mod.*member));
}

/// Calls `said` with each field that differs from what would be meant without it, and its value.
template <class F>
void fields(const Request& request, F said) {
  Request usual{.target = request.target, .pass = request.pass};
  for (const ShapeRow& row : shape_rows()) {
    if (request.target.isa && !row.of_cpu) continue;
    if (row.usual) row.usual(usual);
    const std::string value = row.text(request);
    if (value.empty() || (value == row.text(usual) && !row.always)) continue;
    row.set(usual, value);
    said(row, value);
  }
}

}  // namespace

Request request_of(const compiler::Mod& written, const compiler::Args& args) {
  Request out;
  for (const auto& [name, text] : compiler::spell(written).named())
    out.mod.*std::ranges::find(written_parts, name, &WrittenPart::word)->member = text;
  for (std::size_t i = 0; i < written.captures.size(); ++i) {
    const Tensor& t = args.captures[i];
    const auto extents = std::span(t.shape).first(static_cast<std::size_t>(t.rank));
    out.mod.captures.push_back(
        fmt::format("{}={}[{}]", written.captures[i].name, attune::name_of(t.dtype), fmt::join(extents, ", ")));
  }
  for (std::size_t i = 0; i < written.params.size(); ++i)
    out.mod.params.push_back(written.params[i].name + "=" + param_text(written.params[i].type, args.params[i]));
  return out;
}

std::string json_line(const Request& request) {
  using Ordered = nlohmann::ordered_json;
  Ordered mod = Ordered::object(), shape = Ordered::object();
  parts(request, [&](const char* name, const std::string& text) { mod[name] = text; });
  const auto add = [&](const char* list, const std::string& assignment, auto value_of) {
    const std::size_t equals = assignment.find('=');
    mod[list][assignment.substr(0, equals)] = value_of(assignment.substr(equals + 1));
  };
  for (const std::string& one : request.mod.captures) add("captures", one, [](auto text) { return Ordered(text); });
  for (const std::string& one : request.mod.params) add("params", one, [](auto text) { return Ordered::parse(text); });
  fields(request, [&](const ShapeRow& row, const std::string& value) {
    const bool is_text = value != "true" && value != "false" && !std::isdigit(static_cast<unsigned char>(value[0]));
    shape[std::string(row.name)] = is_text ? Ordered(value) : Ordered::parse(value);
  });
  const Ordered all{{"mods", mod}, {"shapes", shape}, {"targets", name_of(request.target)}, {"passes", request.pass}};
  return all.dump(-1, ' ', false, Ordered::error_handler_t::replace);
}

std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string compile_command(const Request& request, const std::string& file) {
  std::string out = "attune compile";
  const auto add = [&](const std::string& option, const std::string& value) {
    out += fmt::format(" {} {}", option, quoted(value));
  };
  parts(request, [&](std::string_view name, const std::string& text) { add("--" + std::string(name), text); });
  for (const std::string& one : request.mod.captures) add("--capture", one);
  for (const std::string& one : request.mod.params) add("--param", one);
  add("--target", name_of(request.target));
  if (request.pass != "forward") add("--pass", request.pass);
  fields(request, [&](const ShapeRow& row, const std::string& value) { add(option_of(row), value); });
  add("-o", file);
  return out;
}

std::string in_words(const Request& request) {
  std::string out = fmt::format("{} for {}", request.pass, name_of(request.target));
  fields(request, [&](const ShapeRow& row, const std::string& value) {
    out += value == "true" ? fmt::format(", {}", row.name) : fmt::format(", {} {}", row.name, value);
  });
  return out;
}

Purpose::Text text_of(const Request& request) {
  std::string mod;
  parts(request, [&](const char* name, const std::string& text) {
    mod += fmt::format("{}{} {}", mod.empty() ? "" : "\n", name, text);
  });
  return {.record = json_line(request),
          .words = fmt::format("{}\n{}", mod.empty() ? "plain attention" : mod, in_words(request)),
          .command = compile_command(request, "kernels.attune")};
}

}  // namespace attune::runtime

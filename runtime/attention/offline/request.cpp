// runtime/attention/offline/request.cpp — a request for a kernel, as a line of a record and as the command that
// compiles it
#include "runtime/attention/offline/request.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

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

/// Calls `said` with each field that the shape sets, and its value.
template <class F>
void fields(const Request& request, F said) {
  const auto target = target_named(request.target);
  const bool on_cpu = target && target->isa;
  for (const ShapeRow& row : shape_rows()) {
    const std::string value = row.text(request.shape);
    if (!value.empty() && (row.of_cpu || !on_cpu)) said(row, value);
  }
}

}  // namespace

Request request_of(const compiler::Mod& written, const compiler::Args& args) {
  Request out{.mod = compiler::spell(written)};
  for (std::size_t i = 0; i < written.captures.size(); ++i) {
    const Tensor& t = args.captures[i];
    const auto extents = std::span(t.shape).first(static_cast<std::size_t>(t.rank));
    out.captures.push_back(
        {written.captures[i].name, fmt::format("{}[{}]", attune::name_of(t.dtype), fmt::join(extents, ", "))});
  }
  for (std::size_t i = 0; i < written.params.size(); ++i)
    out.params.push_back({written.params[i].name, param_text(written.params[i].type, args.params[i])});
  return out;
}

std::string json_line(const Request& request) {
  using Ordered = nlohmann::ordered_json;
  Ordered mod = Ordered::object(), shape = Ordered::object();
  for (const auto& [name, text] : request.mod.named()) mod[name] = text;
  for (const auto& one : request.captures) mod["captures"][one.name] = one.type;
  for (const auto& one : request.params) mod["params"][one.name] = Ordered::parse(one.value);
  fields(request, [&](const ShapeRow& row, const std::string& value) {
    shape[std::string(row.name)] = row.json == ShapeRow::JsonForm::text ? Ordered(value) : Ordered::parse(value);
  });
  const Ordered all{{"mods", mod}, {"shapes", shape}, {"targets", request.target}, {"passes", request.pass}};
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
  for (const auto& [name, text] : request.mod.named()) add("--" + name, text);
  for (const auto& one : request.captures) add("--capture", one.name + "=" + one.type);
  for (const auto& one : request.params) add("--param", one.name + "=" + one.value);
  add("--target", request.target);
  if (request.pass != "forward") add("--pass", request.pass);
  fields(request, [&](const ShapeRow& row, const std::string& value) { add(option_of(row), value); });
  add("-o", file);
  return out;
}

std::string in_words(const Request& request) {
  std::string out = fmt::format("{} for {}", request.pass, request.target);
  fields(request, [&](const ShapeRow& row, const std::string& value) {
    out += value == "true" ? fmt::format(", {}", row.name) : fmt::format(", {} {}", row.name, value);
  });
  return out;
}

Purpose::Text text_of(const Request& request) {
  std::string mod;
  for (const auto& [name, text] : request.mod.named())
    mod += fmt::format("{}{} {}", mod.empty() ? "" : "\n", name, text);
  return {.record = json_line(request),
          .words = fmt::format("{}\n{}", mod.empty() ? "plain attention" : mod, in_words(request)),
          .command = compile_command(request, "kernels.attune")};
}

}  // namespace attune::runtime

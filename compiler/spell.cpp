// compiler/spell.cpp — a Mod as text that parses back to it, for commands and files
#include "compiler/spell.h"

#include <array>

#include "ir/print.h"

namespace attune::compiler {
namespace {

/// An expression that reads all captures and parameters no other expression reads; empty if there are none.
std::string unread(const Mod& mod, const ir::Signature& names) {
  std::vector<bool> captures(mod.captures.size()), params(mod.params.size());
  for (const ir::Expr& e : ir::in_order(std::array{mod.score, mod.mask, mod.prob, mod.sink})) {
    if (e->op == ir::Op::Read) captures[e->bits] = true;
    if (e->op == ir::Op::Param) params[e->bits] = true;
  }
  std::string out;
  const auto add = [&](ir::Type type, const std::string& value) {
    out += (out.empty() ? "" : " + ") + (type == ir::Type::F32 ? value : "f32(" + value + ")");
  };
  for (std::size_t i = 0; i < captures.size(); ++i) {
    if (captures[i]) continue;
    std::string index;
    for (int d = 0; d < mod.captures[i].rank; ++d) index += d ? ", 0" : "0";
    add(names.captures[i].type, mod.captures[i].name + "[" + index + "]");
  }
  for (std::size_t i = 0; i < params.size(); ++i)
    if (!params[i]) add(mod.params[i].type, mod.params[i].name);
  return out;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Spelt::named() const {
  std::vector<std::pair<std::string, std::string>> out{
      {"score", score}, {"mask", mask}, {"prob", prob}, {"sink", sink}};
  std::erase_if(out, [](const auto& one) { return one.second.empty(); });
  return out;
}

Spelt spell(const Mod& mod) {
  const ir::Signature names = mod.signature();
  const auto text = [&](const ir::Expr& e, bool usual) { return usual ? std::string() : ir::print(e, names); };
  Spelt out{.score = text(mod.score, mod.score->op == ir::Op::Input),
            .mask = text(mod.mask, ir::is_literal(mod.mask, 1)),
            .prob = text(mod.prob, mod.prob->op == ir::Op::Input),
            .sink = text(mod.sink, !mod.sink)};
  // Slots are numbered in order of first use, so the unread ones must come last.
  if (const std::string rest = unread(mod, names); !rest.empty()) {
    std::string& last = mod.sink ? out.sink : out.prob;
    const std::size_t lets = last.rfind(';') == std::string::npos ? 0 : last.rfind(';') + 1;
    const std::string value = last.substr(lets);
    last = last.substr(0, lets) + "where(true, " + (value.empty() ? "p" : value) + ", " + rest + ")";
  }
  return out;
}

}  // namespace attune::compiler

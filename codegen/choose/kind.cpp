// codegen/choose/kind.cpp — names of what is chosen and by what: kinds of calls, and variants, which are a kernel and
// how its tile is cut
#include "codegen/choose/kind.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <fmt/format.h>

#include <attune/error.h>

#include "codegen/facts/gpu_parts.h"

namespace attune::codegen {
namespace {

// ---- kinds of calls -------------------------------------------------------------------------------------------------

using ir::Expr;

constexpr std::array<std::string_view, 5> cover_names{"full", "causal", "window", "listed", "pairs"};
constexpr std::array<std::string_view, 4> mod_names{"scaled", "affine", "heavy", "reads"};
constexpr std::array<std::string_view, all_lengths.size()> length_names{"to_80", "to_128", "to_224",
                                                                        "to_1k", "to_4k",  "longer"};

template <class Kind, std::size_t N>
std::optional<Kind> named(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto at = std::ranges::find(names, name);
  if (at == names.end()) return std::nullopt;
  return static_cast<Kind>(at - names.begin());
}

CoverKind cover_kind(const compiler::Cover& cover, const Traits& facts) {
  if (facts.listed) return CoverKind::listed;
  if (!facts.skips) return CoverKind::full;
  const compiler::Bands& bands = cover.along_kv;
  const auto is_everything = [](const compiler::Band& band) {
    return ir::is_literal(band.begin, 0) && band.end->op == ir::Op::Input && ir::uses(band.end, ir::Input::KVLen);
  };
  if (bands.gone.empty() || std::ranges::any_of(bands.gone, is_everything)) return CoverKind::pairs;
  const bool from_the_first = std::ranges::all_of(
      bands.kept, [](const compiler::Band& band) { return ir::is_literal(band.begin, 0); });
  return from_the_first ? CoverKind::causal : CoverKind::window;
}

ModKind mod_kind(const compiler::Mod& mod, const Traits& facts) {
  const std::array roots{mod.levels.element[0], mod.levels.element[2]};  // score and prob
  const std::vector<Expr> nodes = ir::in_order(roots);
  if (std::ranges::any_of(nodes, [](const Expr& e) { return e->op == ir::Op::Read; })) return ModKind::reads;
  // A product such as p * p is light: it took 0.76 ms at D=128 and 0.52 at D=64, and 0.82 and 0.61 with the tiles of
  // heavy mods (H200, causal, 2 x 16 x 8192).
  const bool is_product = facts.degree == 2;
  if ((facts.has_prob && !is_product) || !mod.fold.affine) return ModKind::heavy;
  return facts.scaled ? ModKind::scaled : ModKind::affine;
}

}  // namespace

CallKind call_kind(const GpuParts& parts, Length length) {
  return {cover_kind(parts.cover(), parts.facts), mod_kind(parts.mod(), parts.facts), length};
}

std::string_view name_of(CoverKind kind) { return cover_names[static_cast<std::size_t>(kind)]; }
std::string_view name_of(ModKind kind) { return mod_names[static_cast<std::size_t>(kind)]; }
std::string_view name_of(Length length) { return length_names[static_cast<std::size_t>(length)]; }
std::optional<CoverKind> cover_kind_named(std::string_view name) { return named<CoverKind>(cover_names, name); }
std::optional<ModKind> mod_kind_named(std::string_view name) { return named<ModKind>(mod_names, name); }
std::optional<Length> length_named(std::string_view name) { return named<Length>(length_names, name); }

// ---- variants -------------------------------------------------------------------------------------------------------

std::optional<int> Variant::of(std::string_view member) const {
  for (const auto& [name, value] : members)
    if (name == member) return value;
  return std::nullopt;
}

void Variant::set(std::string_view member, int value) {
  for (auto& [name, now] : members)
    if (name == member) {
      now = value;
      return;
    }
  members.emplace_back(member, value);
}

std::string Variant::text() const {
  std::string out = kernel;
  for (std::size_t i = 0; i < members.size(); ++i)
    out += fmt::format("{}{}={}", i ? "," : ":", members[i].first, members[i].second);
  return out;
}

Variant variant(std::string_view text) {
  const auto refuse = [&](std::string why) {
    return Error("bad-kernel", "this names no kernel", {.name = std::string(text)}, std::move(why),
                 "write a kernel, and what of its tile is to be other than usual: NAME:n=96,stages=2");
  };
  const std::size_t colon = std::min(text.find(':'), text.size());
  Variant out{std::string(text.substr(0, colon)), {}};
  if (out.kernel.empty()) throw refuse("no kernel stands before the colon");
  for (std::size_t begin = colon + 1; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view one = text.substr(begin, end - begin);
    const std::size_t equals = one.find('=');
    if (equals == 0 || equals == std::string_view::npos) throw refuse(fmt::format("`{}` is no NAME=NUMBER", one));
    int value = 0;
    const char* last = one.data() + one.size();
    const auto [stop, error] = std::from_chars(one.data() + equals + 1, last, value);
    if (error != std::errc{} || stop != last) throw refuse(fmt::format("`{}` is no NAME=NUMBER", one));
    out.set(one.substr(0, equals), value);
    begin = end + 1;
  }
  return out;
}

}  // namespace attune::codegen

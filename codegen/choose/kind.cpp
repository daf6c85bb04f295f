// codegen/choose/kind.cpp — kinds of calls: what is fastest for one call is fastest for others of its kind
#include "codegen/choose/kind.h"

#include <algorithm>
#include <array>

namespace attune::codegen {
namespace {

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
  if (facts.has_prob || !mod.fold.affine) return ModKind::heavy;
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

}  // namespace attune::codegen

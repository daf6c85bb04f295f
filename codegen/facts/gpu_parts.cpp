// codegen/facts/gpu_parts.cpp — a Mod as GPU kernels take it: its expressions, split by level, and facts about them
#include "codegen/facts/gpu_parts.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <numbers>

#include "codegen/facts/parts.h"
#include "codegen/facts/reads.h"
#include "codegen/source/source_text.h"
#include "compiler/distance.h"
#include "compiler/fold.h"

namespace attune::codegen {
namespace {

using compiler::Cover, compiler::Mod, compiler::Vary;
using ir::Expr, ir::Input, ir::Level, ir::Op;

std::atomic<std::size_t> derived_so_far{0};

/// An origin belongs to a tile of queries, so expressions that depend on it cannot be fields of a head or a row.
void keep_origin_out(compiler::Levels& levels) {
  const auto filter = [&](Level level, std::vector<Expr>& list, std::initializer_list<std::vector<Expr>*> later) {
    ir::DigestMap<Expr> by;
    std::vector<Expr> kept;
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      const Expr field = ir::field(level, i, list[i]->type);
      if (ir::uses(list[i], Input::Origin)) {
        by.emplace(field->digest, list[i]);
      } else {
        by.emplace(field->digest, ir::field(level, static_cast<std::uint32_t>(kept.size()), list[i]->type));
        kept.push_back(list[i]);
      }
    }
    if (kept.size() == list.size()) return;
    list = std::move(kept);
    for (std::vector<Expr>* l : later)
      for (Expr& e : *l) e = ir::substitute(e, by);
  };
  filter(Level::Head, levels.head, {&levels.row, &levels.col, &levels.element});
  filter(Level::Row, levels.row, {&levels.col, &levels.element});
}

/// True if the launch needs tile lists: bands are not exact, and verdicts on tiles tell more.
bool listed(const Cover& cover, const compiler::Bands& bands, std::size_t captures) {
  if (bands.exact() && bands.kept.size() <= 1 && !reads_summaries(bands, captures)) return false;
  return !ir::is_literal(cover.may_keep, 1) || !ir::is_literal(cover.may_drop, 1);
}

float upward(double x) { return std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()); }

/// True if `e` uses only the fields of a row and a column.
bool asks_fields_alone(const Expr& e) {
  const std::vector<Expr> nodes = ir::in_order(e);
  return std::none_of(nodes.begin(), nodes.end(), [](const Expr& n) {
    const auto is = [&](Input which) { return n->bits == static_cast<std::uint32_t>(which); };
    return (n->op == Op::Input && (is(Input::Q) || is(Input::KV))) || (n->random && n->op != Op::Field);
  });
}

/// The number by which an operation divides kv; 0 if the operation is not a division of kv.
int divisor_of_kv(const Expr& e) {
  const bool divides = e->op == Op::Div || e->op == Op::FloorDiv || e->op == Op::Shr;
  if (!divides || e->args[0]->op != Op::Input || !ir::uses(e->args[0], Input::KV) || !ir::is_literal(e->args[1]))
    return 0;
  const auto by = static_cast<std::int32_t>(ir::literal_value(*e->args[1]));
  if (e->op == Op::Shr) return by >= 0 && by < 31 ? 1 << by : 0;
  return std::max(by, 0);
}

/// The largest power of two, at most 128, such that `e` has one value for all keys of each aligned block of that size.
int key_block(const Expr& e) {
  constexpr int most = 128;
  ir::DigestMap<int> block_of;
  for (const Expr& node : ir::in_order(e)) {
    int block = node->random ? 1 : most;
    if (node->op == Op::Input) {
      const auto is = [&](Input which) { return node->bits == static_cast<std::uint32_t>(which); };
      if (is(Input::KV) || is(Input::S) || is(Input::P)) block = 1;
    } else if (const int divisor = divisor_of_kv(node); divisor > 0) {
      block = std::min(divisor & -divisor, most);
    } else {
      for (const Expr& argument : node->arguments()) block = std::min(block, block_of.at(argument->digest));
    }
    block_of.emplace(node->digest, block);
  }
  return block_of.at(e->digest);
}

/// True if fields vary with the head.
bool ask_heads(std::span<const Expr> fields) {
  const std::vector<Expr> nodes = ir::in_order(fields);
  return std::ranges::any_of(nodes, [](const Expr& n) {
    return ir::uses(n, Input::H) || (n->op == Op::Field && ir::field_level(*n) == Level::Head);
  });
}

/// How a kernel for a part of a backward sums the term.
Term::Sum sum_of_parts(const compiler::Scatter& scatter) {
  bool row = false, col = false, pair = !scatter.loops.empty();
  for (const Expr& index : scatter.index) {
    row |= ir::uses(index, Input::Q);
    col |= ir::uses(index, Input::KV);
    pair |= ir::uses(index, Input::S) || ir::uses(index, Input::P) || index->random;
  }
  using Sum = Term::Sum;
  return pair || (row && col) ? Sum::pair : row ? Sum::row : col ? Sum::col : Sum::head;
}

/// The place of a term, and the factor of its flow.
std::vector<Expr> factors_of(const compiler::Scatter& scatter) {
  std::vector<Expr> out = scatter.index;
  out.push_back(scatter.value);
  return out;
}

/// True if the term is the gradient of a row's scores times a factor that is the same for all of them, so that their
/// sum is enough.
bool ends_rows(const compiler::Scatter& scatter) {
  const std::vector<Expr> factors = factors_of(scatter);
  return std::ranges::none_of(factors, [](const Expr& e) {
    return e->random || ir::uses(e, Input::KV) || ir::uses(e, Input::S) || ir::uses(e, Input::Origin);
  });
}

/// True if a number is the same for all pairs of a row.
bool is_of_row(const Expr& e) {
  return !e->random && !ir::uses(e, Input::KV) && !ir::uses(e, Input::S) && !ir::uses(e, Input::P) &&
         !ir::uses(e, Input::Origin);
}

/// What dropout leaves of x: `where(kept, x, 0)`. Null: there is none.
struct Kept {
  Expr condition, x;
};
Kept kept_of(const Expr& e) {
  if (e->op == Op::Where && ir::is_literal(e->args[2], 0)) return {e->args[0], e->args[1]};
  return {nullptr, e};
}

/// What p is multiplied by, if it is the same for all pairs of a row that are not dropped; else null. The sum of p dP
/// over a row is then delta over this number. Where it is 0 or far from 1, delta is not precise enough, and
/// sum_pairs_sm80.cuh visits the row's pairs.
Expr gate_of(const Mod& mod) {
  if (delta_degree(mod.prob) != 1 || !linear_in_p(mod.prob)) return nullptr;
  const Expr gate = kept_of(mod.dprob.by).x;
  return is_of_row(gate) ? gate : nullptr;
}

/// What delta is multiplied by in this term of the prob mod's derivative, if it follows from delta; else null.
Expr share_of(const Mod& mod, const compiler::Scatter& scatter) {
  const Expr gate = gate_of(mod);
  if (!gate || ir::is_literal(gate) || !scatter.loops.empty() || !std::ranges::all_of(scatter.index, is_of_row))
    return nullptr;
  const Kept of_all = kept_of(mod.dprob.by), of_term = kept_of(scatter.value);
  const bool same = of_all.condition && of_term.condition ? of_all.condition->digest == of_term.condition->digest
                                                          : !of_all.condition && !of_term.condition;
  if (!same || !linear_in_p(of_term.x)) return nullptr;
  const Expr p = ir::input(Input::P), slope = ir::substitute(of_term.x, {{p->digest, ir::real(1)}});
  return is_of_row(slope) ? ir::op(Op::Div, slope, gate) : nullptr;
}

/// Chooses how a kernel for a whole backward sums the terms. `by_distance`: terms that are dS times a factor, whose
/// factor and place are the same for all pairs of one distance q - kv.
void sum_whole(GradientParts& of, const std::vector<bool>& by_distance) {
  const auto along = [&](std::size_t i) {
    return by_distance[i] && (of.terms[i].whole == Term::Sum::pair || of.terms[i].whole == Term::Sum::head);
  };
  bool any = false;
  for (std::size_t i = 0; i < of.terms.size(); ++i) any |= along(i) && of.terms[i].whole == Term::Sum::pair;
  if (!any) return;
  // If diagonals are summed anyway, terms that could be summed by head cost less there.
  for (std::size_t i = 0; i < of.terms.size(); ++i)
    if (along(i)) of.terms[i].whole = of.ds.empty() ? Term::Sum::diagonal : Term::Sum::distance;
}

/// Replaces s, which the score's expressions use, by q . k, which kernels have.
Expr of_product(const Expr& e, const Expr& scale) {
  const Expr s = ir::input(Input::S);
  return ir::substitute(value_of(e), {{s->digest, ir::op(Op::Mul, s, scale)}});
}

/// The factor of an exponent that is s times a number of the head, at least 0; null if it is no such multiple.
Expr factor_of(const Expr& exponent, const Mod& mod, bool scale_positive) {
  const bool multiple = exponent->op == Op::Mul && exponent->args[0]->op == Op::Input &&
                        !ir::uses(exponent->args[1], Input::S) && compiler::varies(exponent->args[1]) == Vary::Head;
  if (!multiple || !scale_positive || !mod.fold.affine) return nullptr;
  const ir::Interval factor = ir::range(mod.fold.scale, compiler::coordinate_bounds());
  // Kernels evaluate the factor once per head, so it may not contain a field of a row.
  const auto of_head = [](const Expr& n) { return n->op != Op::Field || ir::field_level(*n) == Level::Head; };
  const std::vector<Expr> nodes = ir::in_order(exponent->args[1]);
  return factor.numbers() && factor.lo >= 0 && std::ranges::all_of(nodes, of_head) ? exponent->args[1] : nullptr;
}

/// Finds the parts of the exponent that a kernel may compute or copy before it visits their pairs.
void find_held(GpuParts& out, const compiler::LoweredMod& lowered, bool backward) {
  Traits& facts = out.facts;
  out.copied = copied_reads(out.exponent(), lowered, backward);
  facts.copied_reads = static_cast<int>(out.copied.size());
  facts.copies_f32 = facts.copied_reads && lowered.mod.captures[out.copied[0]->bits].dtype == DType::f32;
  out.distant = distant_part(out.exponent());
  facts.distant_reads = out.distant ? count_reads(out.distant) : 0;
  out.tanh = only_tanh(out.exponent());
  facts.has_tanh = out.tanh != nullptr;
}

/// How the terms are summed in a kernel for a whole backward.
void find_sums(GpuParts& out) {
  Traits& facts = out.facts;
  const GradientParts& of = *out.gradient;
  facts.sums_items = of.asks(by_kernel);
  facts.items_ask_s = std::ranges::any_of(of.terms, [&](const Term& term) {
    return (facts_of(term.whole).summers & by_kernel) != 0 &&
           (of.has_slope || ir::uses(out.levels.element[term.first + term.rank], Input::S));
  });
  facts.sums_diagonals = of.asks(by_spread_diagonals);
  facts.stores_ds = of.asks(by_sum_ds);
}

/// See Traits::column_words.
int column_words(const GpuParts& parts) {
  const std::vector<Expr>& cols = parts.levels.col;
  const bool shared = read_captures(cols) && ask_columns(std::array{parts.exponent(), parts.prob()});
  const bool words = std::ranges::all_of(cols, [](const Expr& e) { return e->type == ir::Type::F32; });
  return shared && words ? static_cast<int>(cols.size()) : 0;
}

/// Appends the expressions of a backward to those of the forward.
GradientParts gradient_parts(const compiler::LoweredMod& lowered, const Wanted& wanted, bool may_store,
                             const Expr& scale, std::vector<Expr>& roots) {
  const Mod& mod = lowered.mod;
  GradientParts out{.wanted = wanted,
                    .has_slope = !ir::is_literal(mod.dscore.by, 1),
                    .delta_degree = delta_degree(mod.prob),
                    .removes = lowered.removes() || mod.score->op != Op::Input,
                    .terms = {},
                    .ds = may_store ? ds_terms(mod, wanted) : std::vector<DsTerm>(),
                    .of_sink = {}};
  roots.push_back(gathered(of_product(mod.dscore.by, scale)));
  roots.push_back(gathered(value_of(mod.dprob.by)));
  std::vector<bool> distances;
  const auto add = [&](const compiler::Derivative& derivative, bool by_prob) {
    for (const compiler::Scatter& scatter : derivative.captures) {
      if (!wanted[scatter.capture]) continue;
      // What is summed along a diagonal is the gradient of s: that of the score times the slope.
      const bool is_slope = !by_prob && out.has_slope && scatter.value->digest == mod.dscore.by->digest;
      const std::vector<Expr> factors = is_slope ? scatter.index : factors_of(scatter);
      distances.push_back(!by_prob && (is_slope || !out.has_slope) &&
                          std::ranges::all_of(factors, compiler::by_distance));
      const Term::Sum parts = sum_of_parts(scatter);
      out.terms.push_back({.capture = scatter.capture,
                           .by_prob = by_prob,
                           .is_slope = is_slope,
                           .loops = scatter.loops,
                           .rank = scatter.index.size(),
                           .first = roots.size(),
                           .parts = parts,
                           .whole = out.is_of_ds(scatter.capture)    ? Term::Sum::ds
                                    : !by_prob && ends_rows(scatter) ? Term::Sum::end
                                                                     : parts});
      for (const Expr& index : scatter.index) roots.push_back(of_product(index, scale));
      roots.push_back(of_product(scatter.value, scale));
      if (const Expr share = by_prob ? share_of(mod, scatter) : nullptr) {
        out.terms.back().whole = Term::Sum::gate;
        out.terms.back().own = roots.size();
        roots.insert(roots.end(), {gathered(share), gathered(gate_of(mod))});
      }
    }
  };
  add(mod.dscore, false);
  add(mod.dprob, true);
  sum_whole(out, distances);
  for (const compiler::Scatter& scatter : mod.dsink.captures)
    if (wanted[scatter.capture]) out.of_sink.push_back(scatter);
  return out;
}

/// The c of dropout, `kept ? p * c : 0`; null for another prob mod. c is the same finite number for all
/// pairs of a call, so that a kernel may multiply by it once, at the end.
Expr factor_of_kept(const Expr& prob) {
  if (prob->op != Op::Where || prob->args[0]->op != Op::Kept || !ir::is_literal(prob->args[2], 0)) return nullptr;
  const Expr& chosen = prob->args[1];
  const auto is_p = [](const Expr& e) { return e->op == Op::Input && ir::uses(e, Input::P); };
  const bool multiple = chosen->op == Op::Mul && is_p(chosen->args[0]);
  if (!multiple && !is_p(chosen)) return nullptr;
  const Expr factor = multiple ? chosen->args[1] : ir::real(1);
  if (factor->uses != 0 || factor->free) return nullptr;
  const ir::Interval range = ir::range(factor);
  constexpr double most = std::numeric_limits<float>::max();
  return range.numbers() && range.lo >= -most && range.hi <= most ? factor : nullptr;
}
/// Appends the expressions that Drops of cuda/contract/mod.cuh needs, if the prob mod is dropout whose seed and share
/// are the same for all pairs of a head.
bool add_dropped(std::vector<Expr>& roots) {
  const Expr prob = roots[2], factor = factor_of_kept(prob);
  const auto of_head = [](const Expr& e) { return compiler::varies(e) == Vary::Head && !ir::uses(e, Input::Origin); };
  if (!factor || !std::ranges::all_of(prob->args[0]->arguments(), of_head)) return false;
  roots.insert(roots.end(), {prob->args[0]->args[0], prob->args[0]->args[1], factor});
  return true;
}

}  // namespace

std::vector<const Term*> GradientParts::summed_by(Term::Sum sum, bool whole) const {
  std::vector<const Term*> out;
  for (const Term& term : terms)
    if ((whole ? term.whole : term.parts) == sum) out.push_back(&term);
  return out;
}

bool GradientParts::asks(Summers kernel) const {
  return std::ranges::any_of(terms, [&](const Term& term) { return (facts_of(term.whole).summers & kernel) != 0; });
}

bool GradientParts::is_of_ds(std::uint32_t slot) const {
  return std::ranges::find(ds, slot, &DsTerm::capture) != ds.end();
}

bool GradientParts::sums_exactly() const {
  return static_cast<std::size_t>(std::ranges::count(wanted, true)) > ds.size();
}

bool reads_summaries(const compiler::Bands& bands, std::size_t captures) {
  std::vector<Expr> ends;
  for (const auto* list : {&bands.kept, &bands.gone})
    for (const compiler::Band& band : *list) ends.insert(ends.end(), {band.begin, band.end});
  const std::vector<Expr> nodes = ir::in_order(ends);
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](const Expr& e) { return e->op == Op::Read && e->bits >= captures; });
}

GpuParts gpu_parts(const compiler::LoweredMod& lowered, bool scale_positive, const Wanted* wanted, bool keeps_keys,
                   bool may_store) {
  ++derived_so_far;
  const Mod& mod = lowered.mod;
  GpuParts out;
  out.of = &lowered;
  const Expr scale = ir::param(static_cast<std::uint32_t>(mod.params.size()), ir::Type::F32);
  const Expr prob = gathered(value_of(mod.prob)), mask = value_of(mod.mask);
  const Limits limits = limits_of(mask);
  Traits& facts = out.facts;
  facts.has_first = limits.first != nullptr;
  facts.has_last = limits.last != nullptr;
  const Expr none = ir::integer(0);
  std::vector<Expr> roots{exponent(value_of(mod.fold.core), scale), limits.rest, prob,
                          facts.has_first ? limits.first : none, facts.has_last ? limits.last : none};
  if (wanted) out.gradient = gradient_parts(lowered, *wanted, may_store, scale, roots);
  out.dropped = roots.size();
  // A custom derivative is not that of dropout.
  const bool drops = (!wanted || delta_degree(mod.prob) == 1) && add_dropped(roots);
  out.levels = compiler::level(roots);
  facts.has_keep = !ir::is_literal(out.keep(), 1);
  facts.keeps_by_fields = facts.has_keep && asks_fields_alone(out.keep()) && read_captures(out.levels.col);
  if (const int block = facts.has_keep ? key_block(limits.rest) : 0; block >= 16) facts.keep_block = block;
  keep_origin_out(out.levels);
  if (!wanted) {
    const Peaked of = peaked(out.levels);
    out.term = of.term;
    facts.peak = of.peak;
  }
  find_held(out, lowered, wanted != nullptr);
  facts.column_words = column_words(out);
  out.rest = value_of(mod.fold.row);
  out.sink = mod.sink ? value_of(mod.sink) : nullptr;
  out.factor = factor_of(out.exponent(), mod, scale_positive);
  facts.scaled = out.factor != nullptr;
  facts.bounded = mod.fold.bounded();
  if (facts.bounded) facts.most = upward(mod.fold.range.hi * std::numbers::log2e);
  facts.masked = !ir::is_literal(mask, 1);
  facts.skips = !ir::is_literal(lowered.cover.may_drop, 0);
  facts.has_prob = prob->op != Op::Input;
  facts.degree = static_cast<float>(degree_in_p(value_of(mod.prob)));
  facts.delta_of_o = !out.gradient || out.gradient->delta_degree > 0;
  facts.has_slope = out.gradient && out.gradient->has_slope;
  facts.keeps_zero = keeps_zero(mod.prob);
  facts.drops = drops;
  facts.draws = !drops && std::ranges::any_of(ir::in_order(mod.prob), [](const Expr& e) { return ir::draws(e->op); });
  facts.has_sink = mod.sink != nullptr;
  const compiler::Bands& along = keeps_keys ? lowered.cover.along_q : lowered.cover.along_kv;
  facts.listed = listed(lowered.cover, along, mod.captures.size());
  facts.has_terms = out.gradient && !(out.gradient->terms.empty() && out.gradient->of_sink.empty());
  if (out.gradient) find_sums(out);
  facts.shares_tiles = !lowered.cover.by_head && !(read_captures(out.levels.col) && ask_heads(out.levels.col));
  const ir::Signature signature = source_signature(mod);
  out.fields = {field_names("head", out.levels.head, signature), field_names("row", out.levels.row, signature),
                field_names("col", out.levels.col, signature)};
  return out;
}

GpuParts forward_parts(const compiler::LoweredMod& lowered, const KernelSpec& spec) {
  GpuParts out = gpu_parts(lowered, !spec.negative);
  // Calls with few queries evaluate the mask pair by pair: listing tiles takes as long as it saves.
  if (spec.cache.per_entry && (spec.sharing.decode() || spec.cache.mla)) out.facts.listed = false;
  // The call before has included the sink.
  if (spec.before) out.facts.has_sink = false;
  return out;
}

std::size_t gpu_parts_derived() { return derived_so_far; }

}  // namespace attune::codegen

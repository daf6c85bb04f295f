// codegen/gradient_source.cpp — what the source of a backward has besides the forward's: sums of gradients' terms
#include "codegen/gradient_source.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "codegen/companion.h"
#include "codegen/kernel.h"
#include "codegen/source_text.h"

namespace attune::codegen {
namespace {

using ir::Expr;

std::string_view sums_function(Term::Place place) {
  switch (place) {
    case Term::Place::head: return "by_head";
    case Term::Place::row: return "by_row";
    case Term::Place::col: return "by_col";
    case Term::Place::pair: return "by_pair";
  }
  return {};
}

/// A member of the source's struct: the address of the exact sums of a captured tensor's gradient.
std::string sums_of(const ir::Signature& signature, std::uint32_t capture) {
  return "sums_of_" + signature.captures[capture].name;
}

/// Writes the functions that add terms to sums, and those that return the places of these sums.
class TermFunctions {
 public:
  TermFunctions(const GpuParts& parts, const ir::Signature& signature, Leaves leaves)
      : parts_(parts), signature_(signature), leaves_(leaves) {}

  std::string text() {
    std::string out;
    for (const Term::Place place : {Term::Place::head, Term::Place::row, Term::Place::col}) out += sums(place);
    out += pairs();
    out += places(Term::Place::head, "Head head, Where at");
    out += places(Term::Place::row, "Head head, Row row, Where at, Int q");
    out += places(Term::Place::col, "Head head, Col col, Where at, Int origin, Int kv");
    if (leaves_ == Leaves::ds) out += factor();
    if (leaves_ == Leaves::diagonals)
      out += function("by_diagonal(float x, Head head, Row row, Col col, Where at, Int q, Int kv)", [&] {
        std::string statements;
        // A distance without pairs adds nothing, even if its factor is infinite or NaN.
        for (const Term& term : parts_.gradient->terms)
          statements += addition(term, "add_together", "x == 0.0f ? 0.0f : x");
        return statements;
      }());
    return out + sink();
  }

 private:
  static constexpr std::string_view pair_arguments =
      "Flow flow, float s, float p, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv";

  const Expr& element(std::size_t i) const { return parts_.levels.element[i]; }
  std::string value(const Expr& e) {
    uses_ |= source_uses(e);
    return source_value(e, signature_, parts_.fields);
  }
  std::string indices(std::span<const Expr> list) {
    std::string out;
    for (const Expr& index : list) out += (out.empty() ? "" : ", ") + value(index);
    return out;
  }
  std::string place(std::uint32_t capture, std::span<const Expr> index) {
    return fmt::format("{} + exact_words * {}.place({})", sums_of(signature_, capture),
                       signature_.captures[capture].name, indices(index));
  }
  std::string place(const Term& term) {
    return place(term.capture, std::span(parts_.levels.element).subspan(term.first, term.rank));
  }
  std::string added(const Term& term, std::string_view flow) {
    return fmt::format("{} * ({})", flow, value(element(term.first + term.rank)));
  }
  std::string added(const Term& term) { return added(term, term.by_prob ? "flow.prob" : "flow.score"); }
  /// A statement in these loops.
  std::string in_loops(std::span<const compiler::Scatter::Loop> loops, const std::string& statement) const {
    std::string out, indent = "    ";
    for (const compiler::Scatter::Loop& loop : loops) {
      const std::string variable = source_value(ir::bound(loop.binder), signature_);
      out += fmt::format("{0}for (Int {1} = 0; {1} < {2}; {1} = {1} + 1)\n", indent, variable, loop.count);
      indent += "  ";
    }
    return out + indent + statement;
  }
  /// Statements that add the term to its sum by calling this function with the sum and a number.
  std::string addition(const Term& term, std::string_view add, std::string_view flow) {
    return in_loops(term.loops, fmt::format("{}({}, {});\n", add, place(term), added(term, flow)));
  }
  /// The function, with the locals that its statements use.
  std::string function(std::string_view head, const std::string& statements) {
    const std::string typed = head.starts_with("float ") ? std::string(head) : fmt::format("void {}", head),
                      out = statements.empty() ? fmt::format("  __device__ {} const {{}}\n", typed)
                                               : fmt::format("  __device__ {} const {{\n{}{}  }}\n", typed,
                                                             source_locals(uses_, signature_), statements);
    uses_ = 0;
    return out;
  }

  /// With sums along diagonals, these terms are added pair by pair only when a call is recomputed.
  Term::Place place_of(const Term& term) const { return leaves_ == Leaves::diagonals ? Term::Place::pair : term.place; }
  template <class Fn>
  void each(Term::Place place, const Fn& fn) {
    if (leaves_ == Leaves::ds) return;
    std::size_t i = 0;
    for (const Term& term : parts_.gradient->terms)
      if (place_of(term) == place) fn(i++, term);
  }

  std::string sums(Term::Place where) {
    std::string statements;
    each(where,
         [&](std::size_t i, const Term& term) { statements += fmt::format("    sums[{}] += {};\n", i, added(term)); });
    return function(fmt::format("{}(float* sums, {})", sums_function(where), pair_arguments), statements);
  }
  std::string places(Term::Place where, std::string_view arguments) {
    std::string statements;
    each(where,
         [&](std::size_t i, const Term& term) { statements += fmt::format("    places[{}] = {};\n", i, place(term)); });
    return function(fmt::format("places_{}(unsigned long long** places, {})", sums_function(where), arguments),
                    statements);
  }
  std::string pairs() {
    std::string statements;
    each(Term::Place::pair, [&](std::size_t, const Term& term) {
      statements += addition(term, "add_exactly", term.by_prob ? "flow.prob" : "flow.score");
    });
    return function(fmt::format("by_pair({})", pair_arguments), statements);
  }
  /// What dS is multiplied by.
  std::string factor() {
    const Term& term = parts_.gradient->terms[0];
    const std::string text = parts_.gradient->ds->factor ? value(element(term.first + term.rank)) : "1.0f";
    return function("float ds_factor(Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                    fmt::format("    return {};\n", text));
  }
  std::string sink() {
    std::string statements;
    for (const compiler::Scatter& scatter : parts_.gradient->of_sink) {
      std::vector<Expr> index;
      for (const Expr& e : scatter.index) index.push_back(value_of(e));
      statements += in_loops(scatter.loops, fmt::format("add_exactly({}, x * ({}));\n", place(scatter.capture, index),
                                                        value(value_of(scatter.value))));
    }
    return function("by_sink(float x, Head head, Where at)", statements);
  }

  const GpuParts& parts_;
  const ir::Signature& signature_;
  Leaves leaves_;
  std::uint32_t uses_ = 0;
};

}  // namespace

Leaves leaves_of(const GpuParts& parts, const KernelPlan& plan) {
  return leaves_ds(parts, plan) ? Leaves::ds : leaves_diagonals(parts, plan) ? Leaves::diagonals : Leaves::nothing;
}

std::string gradient_traits(const GradientParts& gradient, Leaves leaves) {
  std::vector<std::string> list;
  if (gradient.has_slope) list.emplace_back(".has_slope = true");
  if (!gradient.delta_of_o) list.emplace_back(".delta_of_o = false");
  if (leaves == Leaves::ds) {
    list.emplace_back(".stores_ds = true");
  } else if (leaves == Leaves::diagonals) {
    list.push_back(fmt::format(".by_diagonal = {}", gradient.terms.size()));
  } else {
    for (const Term::Place place : {Term::Place::head, Term::Place::row, Term::Place::col})
      if (const std::size_t count = gradient.count(place))
        list.push_back(fmt::format(".{} = {}", sums_function(place), count));
    if (gradient.count(Term::Place::pair)) list.emplace_back(".by_pair = true");
  }
  if (!gradient.removes) list.emplace_back(".removes = false");
  if (!gradient.of_sink.empty()) list.emplace_back(".by_sink = true");
  return source_traits("  static constexpr GradientTraits gradient{", list);
}

std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, Leaves leaves) {
  return TermFunctions(parts, signature, leaves).text();
}

bool leaves_diagonals(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient && !parts.gradient->terms.empty() && !leaves_ds(parts, plan) &&
         std::ranges::find(plan.kernel->companions, &spread_diagonals) != plan.kernel->companions.end();
}

bool leaves_ds(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient && parts.gradient->ds &&
         std::ranges::find(plan.kernel->companions, &sum_ds) != plan.kernel->companions.end();
}

std::vector<std::string> source_sums(const GpuParts& parts, const KernelPlan& plan) {
  std::vector<std::string> out;
  if (!parts.gradient || leaves_ds(parts, plan)) return out;
  const ir::Signature signature = source_signature(parts.mod());
  for (std::uint32_t slot = 0; slot < parts.gradient->wanted.size(); ++slot)
    if (parts.gradient->wanted[slot]) out.push_back(sums_of(signature, slot));
  if (leaves_diagonals(parts, plan)) out.emplace_back("diagonals");
  return out;
}

}  // namespace attune::codegen

// codegen/source/gradient_source.cpp — what the source of a backward has besides the forward's: sums of gradients'
// terms
#include "codegen/source/gradient_source.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

#include "codegen/choose/companion.h"
#include "codegen/choose/kernel.h"
#include "codegen/source/source_text.h"

namespace attune::codegen {
namespace {

using ir::Expr;

std::string_view sums_function(Term::Sum sum) {
  switch (sum) {
    case Term::Sum::head: return "by_head";
    case Term::Sum::row: return "by_row";
    case Term::Sum::col: return "by_col";
    case Term::Sum::pair: return "by_pair";
    case Term::Sum::diagonal: return "by_diagonal";
    case Term::Sum::end: return "by_end";
    case Term::Sum::gate: return "by_gate";
    case Term::Sum::ds: return "by_ds";
    case Term::Sum::distance: return "by_distance";
  }
  return {};
}

/// Terms that a kernel adds up in registers, a number for each.
constexpr std::array in_registers{Term::Sum::head, Term::Sum::row, Term::Sum::col};

/// A member of the source's struct: the address of the exact sums of a captured tensor's gradient.
std::string sums_of(const ir::Signature& signature, std::uint32_t capture) {
  return "sums_of_" + signature.captures[capture].name;
}

/// Writes the functions that add terms to sums, and those that return the places of these sums.
class TermFunctions {
 public:
  TermFunctions(const GpuParts& parts, const ir::Signature& signature, TermsOf of)
      : parts_(parts), signature_(signature), of_(of) {}

  std::string text() {
    std::string out;
    for (const Term::Sum sum : in_registers) out += sums(sum);
    out += pairs("by_pair", Term::Sum::pair);
    out += places(Term::Sum::head, "Head head, Where at");
    out += places(Term::Sum::row, "Head head, Row row, Where at, Int q");
    out += places(Term::Sum::col, "Head head, Col col, Where at, Int origin, Int kv");
    if (!all(Term::Sum::gate).empty())
      out += sums(Term::Sum::gate) + places(Term::Sum::gate, "Head head, Row row, Where at, Int q") + gate() + shares();
    if (!all(Term::Sum::ds).empty()) out += factor();
    if (of_.diagonals) out += pairs("by_pair_of_diagonal", Term::Sum::diagonal) + distances(Term::Sum::diagonal);
    if (!all(Term::Sum::distance).empty()) out += distances(Term::Sum::distance);
    if (!all(Term::Sum::end).empty())
      out += together("by_end(bool there, float x, Head head, Row row, Where at, Int q)", Term::Sum::end,
                      "!there ? 0.0f : x");
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
  /// The function, with the locals that its statements use.
  std::string function(std::string_view head, const std::string& statements) {
    const std::string typed = head.starts_with("float ") ? std::string(head) : fmt::format("void {}", head),
                      out = statements.empty() ? fmt::format("  __device__ {} const {{}}\n", typed)
                                               : fmt::format("  __device__ {} const {{\n{}{}  }}\n", typed,
                                                             source_locals(uses_, signature_), statements);
    uses_ = 0;
    return out;
  }

  std::vector<const Term*> all(Term::Sum sum) const { return parts_.gradient->summed_by(sum, of_.whole); }

  std::string sums(Term::Sum sum) {
    std::string statements;
    for (std::size_t i = 0; const Term* term : all(sum))
      statements += fmt::format("    sums[{}] += {};\n", i++, added(*term));
    return function(fmt::format("{}(float* sums, {})", sums_function(sum), pair_arguments), statements);
  }
  std::string places(Term::Sum sum, std::string_view arguments) {
    std::string statements;
    for (std::size_t i = 0; const Term* term : all(sum))
      statements += fmt::format("    places[{}] = {};\n", i++, place(*term));
    return function(fmt::format("places_{}(unsigned long long** places, {})", sums_function(sum), arguments),
                    statements);
  }
  std::string pairs(std::string_view name, Term::Sum sum) {
    std::string statements;
    for (const Term* term : all(sum))
      statements += in_loops(term->loops, fmt::format("add_exactly({}, {});\n", place(*term), added(*term)));
    return function(fmt::format("{}({})", name, pair_arguments), statements);
  }
  /// A function that all lanes of a warp call at once.
  std::string together(std::string_view head, Term::Sum sum, std::string_view flow) {
    std::string statements;
    for (const Term* term : all(sum))
      statements += in_loops(term->loops, fmt::format("add_together({}, {});\n", place(*term),
                                                      term->is_slope ? std::string(flow) : added(*term, flow)));
    return function(head, statements);
  }
  std::string gate() {
    return function("float gate(Head head, Row row, Where at, Int q)",
                    fmt::format("    return {};\n", value(element(parts_.gradient->gate))));
  }
  /// What a row adds; x is the gate times the row's sum of p dP.
  std::string shares() {
    std::string statements;
    for (const Term* term : all(Term::Sum::gate))
      statements += fmt::format("    add_together({}, there ? x * ({}) : 0.0f);\n", place(*term),
                                value(element(term->share)));
    return function("by_delta(bool there, float x, Head head, Row row, Where at, Int q)", statements);
  }
  /// A distance without pairs adds nothing, even if its factor is infinite or NaN.
  std::string distances(Term::Sum sum) {
    return together(
        fmt::format("{}(float x, Head head, Row row, Col col, Where at, Int q, Int kv)", sums_function(sum)), sum,
        "x == 0.0f ? 0.0f : x");
  }
  /// What dS is multiplied by in the nth term.
  std::string factor() {
    std::string statements;
    for (std::size_t nth = 0; const Term* term : all(Term::Sum::ds)) {
      const bool has_factor = parts_.gradient->ds[nth].factor != nullptr;
      statements += fmt::format("    if (nth == {}) return {};\n", nth,
                                has_factor ? value(element(term->first + term->rank)) : "1.0f");
      ++nth;
    }
    return function("float ds_factor(int nth, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                    statements + "    return 0;\n");
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
  TermsOf of_;
  std::uint32_t uses_ = 0;
};

}  // namespace

bool sums_whole(const KernelPlan& plan) {
  return std::ranges::find(plan.kernel->companions, &sum_ds) != plan.kernel->companions.end();
}

std::string gradient_traits(const GradientParts& gradient, bool whole) {
  std::vector<std::string> list;
  const auto count = [&](Term::Sum sum) { return gradient.summed_by(sum, whole).size(); };
  const auto says_count = [&](Term::Sum sum) {
    if (const std::size_t n = count(sum)) list.push_back(fmt::format(".{} = {}", sums_function(sum), n));
  };
  if (gradient.has_slope) list.emplace_back(".has_slope = true");
  if (gradient.delta_degree == 0) list.emplace_back(".delta_of_o = false");
  for (const Term::Sum sum : in_registers) says_count(sum);
  says_count(Term::Sum::gate);
  says_count(Term::Sum::diagonal);
  if (count(Term::Sum::pair)) list.emplace_back(".by_pair = true");
  says_count(Term::Sum::ds);
  if (count(Term::Sum::distance)) list.emplace_back(".by_distance = true");
  if (count(Term::Sum::end)) list.emplace_back(".by_end = true");
  if (!gradient.removes) list.emplace_back(".removes = false");
  if (!gradient.of_sink.empty()) list.emplace_back(".by_sink = true");
  return source_traits("  static constexpr GradientTraits gradient{", list);
}

std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, TermsOf of) {
  return TermFunctions(parts, signature, of).text();
}

bool leaves_diagonals(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient && sums_whole(plan) && !parts.gradient->summed_by(Term::Sum::diagonal, true).empty();
}

bool leaves_ds(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient && !parts.gradient->ds.empty() && sums_whole(plan);
}

std::vector<std::string> source_sums(const GpuParts& parts, const KernelPlan& plan) {
  std::vector<std::string> out;
  if (!parts.gradient) return out;
  const ir::Signature signature = source_signature(parts.mod());
  const bool has_ds = leaves_ds(parts, plan);
  for (std::uint32_t slot = 0; slot < parts.gradient->wanted.size(); ++slot)
    if (parts.gradient->wanted[slot] && !(has_ds && parts.gradient->is_of_ds(slot)))
      out.push_back(sums_of(signature, slot));
  if (leaves_diagonals(parts, plan)) out.emplace_back("diagonals");
  return out;
}

}  // namespace attune::codegen

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

/// A way whose terms a kernel adds up in registers, a number for each, and what places_by_...() gets.
struct InRegisters {
  Term::Sum sum;
  std::string_view arguments;
};
constexpr std::string_view of_row = "Head head, Row row, Where at, Int q";
constexpr std::array in_registers{InRegisters{Term::Sum::head, "Head head, Where at"},
                                  InRegisters{Term::Sum::row, of_row},
                                  InRegisters{Term::Sum::col, "Head head, Col col, Where at, Int origin, Int kv"}};

/// A member of the source's struct: the address of the exact sums of a captured tensor's gradient.
std::string sums_of(const ir::Signature& signature, std::uint32_t capture) {
  return "sums_of_" + signature.captures[capture].name;
}

/// Writes the functions that add terms to sums, and those that return the places of these sums.
class TermFunctions {
 public:
  TermFunctions(const GpuParts& parts, const ir::Signature& signature, const KernelPlan& plan)
      : parts_(parts), signature_(signature), type_(plan.spec.dtype), whole_(sums_whole(plan)) {}

  std::string text() {
    std::string out;
    for (const InRegisters& of : in_registers) out += sums(of);
    out += pairs("by_pair", Term::Sum::pair);
    if (any(Term::Sum::gate)) out += sums({Term::Sum::gate, of_row}) + is_told();
    if (any(Term::Sum::end) || any(Term::Sum::gate)) out += end_row();
    if (any(Term::Sum::ds)) out += factor();
    if (any(Term::Sum::diagonal)) out += pairs("by_pair_of_diagonal", Term::Sum::diagonal);
    for (const Term::Sum sum : {Term::Sum::diagonal, Term::Sum::distance})
      if (any(sum)) out += distances(sum);
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
  /// The function, of type void if `head` says none, with the locals that its statements use.
  std::string function(std::string_view head, const std::string& statements) {
    const bool has_type = head.find(' ') < head.find('(');
    const std::string typed = fmt::format("{}{}", has_type ? "" : "void ", head),
                      out = statements.empty() ? fmt::format("  __device__ {} const {{}}\n", typed)
                                               : fmt::format("  __device__ {} const {{\n{}{}  }}\n", typed,
                                                             source_locals(uses_, signature_), statements);
    uses_ = 0;
    return out;
  }

  std::vector<const Term*> all(Term::Sum sum) const { return parts_.gradient->summed_by(sum, whole_); }
  bool any(Term::Sum sum) const { return !all(sum).empty(); }

  std::string sums(const InRegisters& of) {
    const std::string_view name = facts_of(of.sum).function;
    std::string sums, places;
    for (std::size_t i = 0; const Term* term : all(of.sum))
      sums += fmt::format("    sums[{}] += {};\n", i++, added(*term));
    std::string out = function(fmt::format("{}(float* sums, {})", name, pair_arguments), sums);
    for (std::size_t i = 0; const Term* term : all(of.sum))
      places += fmt::format("    places[{}] = {};\n", i++, place(*term));
    return out + function(fmt::format("places_{}(unsigned long long** places, {})", name, of.arguments), places);
  }
  std::string pairs(std::string_view name, Term::Sum sum) {
    std::string statements;
    for (const Term* term : all(sum))
      statements += in_loops(term->loops, fmt::format("add_exactly({}, {});\n", place(*term), added(*term)));
    return function(fmt::format("{}({})", name, pair_arguments), statements);
  }
  /// For functions that all lanes of a warp call at once.
  std::string together(Term::Sum sum, std::string_view flow) {
    std::string out;
    for (const Term* term : all(sum))
      out += in_loops(term->loops, fmt::format("add_together({}, {});\n", place(*term),
                                               term->is_slope ? std::string(flow) : added(*term, flow)));
    return out;
  }
  /// The gate, if delta, divided by it, is as precise as that of an o without a gate, which is rounded to its type.
  std::string is_told() {
    const std::string gate = value(element(all(Term::Sum::gate)[0]->own + 1));
    return function(fmt::format("bool is_told({})", of_row),
                    fmt::format("    const float gate = {0};\n"
                                "    return fabsf(gate) >= 0x1p-{1}f && fabsf(gate) <= 0x1p{1}f;\n",
                                gate, type_ == DType::f16 ? 8 : 60));
  }
  /// What a row adds: multiples of its sum of dS; and of p dP, which delta and grad_lse are, times the gate.
  std::string end_row() {
    std::string out = together(Term::Sum::end, "!there ? 0.0f : ds");
    if (any(Term::Sum::gate)) out += "    const bool told = there && is_told(head, row, at, q);\n";
    for (const Term* term : all(Term::Sum::gate))
      out += fmt::format("    add_together({}, told ? (delta + grad_lse) * ({}) : 0.0f);\n", place(*term),
                         value(element(term->own)));
    return function(fmt::format("end_row(bool there, float ds, float delta, float grad_lse, {})", of_row), out);
  }
  /// A distance without pairs adds nothing, even if its factor is infinite or NaN.
  std::string distances(Term::Sum sum) {
    return function(
        fmt::format("{}(float x, Head head, Row row, Col col, Where at, Int q, Int kv)", facts_of(sum).function),
        together(sum, "x == 0.0f ? 0.0f : x"));
  }
  /// What dS is multiplied by in the nth term.
  std::string factor() {
    std::string statements;
    for (std::size_t nth = 0; const Term* term : all(Term::Sum::ds)) {
      if (parts_.gradient->ds[nth].factor)
        statements += fmt::format("    if (nth == {}) return {};\n", nth, value(element(term->first + term->rank)));
      ++nth;
    }
    return function("float ds_factor(int nth, Head head, Row row, Col col, Where at, Int origin, Int q, Int kv)",
                    statements + "    return 1;\n");
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
  DType type_;
  bool whole_;
  std::uint32_t uses_ = 0;
};

}  // namespace

bool sums_whole(const KernelPlan& plan) {
  return std::ranges::find(plan.kernel->companions, &sum_ds) != plan.kernel->companions.end();
}

std::string gradient_traits(const GradientParts& gradient, bool whole) {
  std::vector<std::string> list;
  if (gradient.has_slope) list.emplace_back(".has_slope = true");
  if (gradient.delta_degree == 0) list.emplace_back(".delta_of_o = false");
  for (const SumFacts& of : facts_of_sums)
    if (const std::size_t count = gradient.summed_by(of.sum, whole).size())
      list.push_back(fmt::format(".{} = {}", of.function, count));
  if (!gradient.removes) list.emplace_back(".removes = false");
  if (!gradient.of_sink.empty()) list.emplace_back(".by_sink = true");
  return source_traits("  static constexpr GradientTraits gradient{", list);
}

std::string gradient_terms(const GpuParts& parts, const ir::Signature& signature, const KernelPlan& plan) {
  return TermFunctions(parts, signature, plan).text();
}

bool leaves_diagonals(const GpuParts& parts, const KernelPlan& plan) {
  return parts.gradient && sums_whole(plan) && parts.gradient->asks(by_spread_diagonals);
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

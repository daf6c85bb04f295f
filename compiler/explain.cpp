// compiler/explain.cpp — a Mod as a page of text
#include "compiler/explain.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "compiler/fold.h"
#include "ir/print.h"

namespace attune::compiler {
namespace {

std::string row(std::string_view name, std::string_view text, std::string_view note = "") {
  return fmt::format("  {:<9}{}{}{}\n", name, text, note.empty() ? "" : "   — ", note);
}

class Page {
 public:
  explicit Page(const LoweredMod& lowered) : lowered_(lowered), mod_(lowered.mod), names_(mod_.signature()) {}

  std::vector<Section> run(const Steps& steps) {
    roots();
    captures();
    simplified(steps);
    cover();
    free();
    levels();
    derivatives();
    times(steps);
    return std::move(out_);
  }

 private:
  using Of = Section::Of;

  std::string show(const ir::Expr& e) const { return ir::print(e, names_); }
  void head(Of of, std::string title) { out_.push_back({of, std::move(title), {}}); }
  void add(std::string_view lines) { out_.back().lines += lines; }
  void line(std::string_view name, std::string_view text, std::string_view note = "") { add(row(name, text, note)); }

  void roots() {
    head(Of::Expressions, "your expressions, simplified");
    line("score", show(mod_.score));
    line("mask", show(mod_.mask), ir::is_literal(mod_.mask, 1) ? "every pair stays" : "");
    if (mod_.prob->op != ir::Op::Input) line("prob", show(mod_.prob), dropout());
    if (mod_.sink) line("sink", show(mod_.sink));
    baked_in();
  }

  /// If the prob mod is dropout, which of its numbers is which: other libraries take the share that is dropped.
  std::string dropout() const {
    const ir::Expr& e = mod_.prob;
    if (e->op != ir::Op::Where || !ir::is_literal(e->args[2], 0)) return "";
    const ir::Expr& chosen = e->args[0];
    const bool drawn = chosen->op == ir::Op::Lt && chosen->args[0]->op == ir::Op::Random;
    if (!drawn && chosen->op != ir::Op::Kept) return "";
    const ir::Expr& share = chosen->args[1];
    const std::string shown = show(share) + (drawn ? "" : " / 65536");
    if (!ir::is_literal(share)) return fmt::format("keeps the share {0}: torch's dropout_p is 1 - {0}", shown);
    if (drawn) return fmt::format("keeps {}: torch's dropout_p is {:.4g}", shown, 1 - ir::literal_value(*share));
    const double kept = ir::literal_value(*share) / 65536;
    return fmt::format("keeps {:.4g}: torch's dropout_p is {:.4g}", kept, 1 - kept);
  }

  /// The literals that are part of the kernel, as `explain` shows them. 0 and 1 are left out: users hardly mean to
  /// change them.
  void baked_in() {
    std::vector<std::string> literals;
    std::unordered_set<std::string> seen;
    for (const ir::Expr& root : {mod_.score, mod_.mask, mod_.prob, mod_.sink}) {
      if (!root) continue;
      for (const ir::Expr& e : ir::in_order(root)) {
        if (!ir::is_literal(e) || e->type == ir::Type::Bool) continue;
        const double value = ir::literal_value(*e);
        if (!std::isfinite(value) || value == 0 || std::abs(value) == 1) continue;
        if (const std::string text = show(e); seen.insert(text).second) literals.push_back(text);
      }
    }
    if (!literals.empty())
      line("baked in", fmt::format("{}", fmt::join(literals, ", ")),
           "compiled into the kernel; a Param may change between calls");
  }

  void captures() {
    if (mod_.captures.empty() && mod_.params.empty()) return;
    head(Of::Arguments, "arguments of the kernel: changing them needs no recompilation");
    for (const CaptureSlot& c : mod_.captures) line(c.name, fmt::format("{} of rank {}", name_of(c.dtype), c.rank));
    for (const ir::Signature::Param& p : mod_.params) line(p.name, fmt::format("{} parameter", name_of(p.type)));
  }

  void simplified(const Steps& steps) {
    if (steps.rewrites.empty()) return;
    head(Of::Rewrites, "simplified");
    for (const Rewrite& r : steps.rewrites) add(fmt::format("  {}  →  {}   — {}\n", show(r.from), show(r.to), r.rule));
  }

  void cover() {
    const Cover& made = lowered_.cover;
    if (ir::is_literal(made.mask)) return;
    head(Of::Cover, "what a tile keeps");
    if (!ir::same(made.mask, mod_.mask))
      line("pairs", show(made.mask), "the pairs left by the mask and by scores of -inf");
    add(explain(made, names_));
  }

  void free() {
    const Fold& f = mod_.fold;
    head(Of::Free, "free in the softmax");
    const bool cancels = !ir::is_literal(f.row, 0);
    if (cancels) line("row", show(f.row), "cancels along a row; added back to lse");
    if (f.affine) {
      line("scale", show(f.scale), "folds into the exponent");
      if (!ir::is_literal(f.bias, 0)) line("bias", show(f.bias));
    } else {
      line("core", show(f.core), "not affine in s: evaluated per element");
    }
    if (f.bounded()) {
      // Which zero bounds values of both depends on the compiler that built attune; + 0.0 makes -0 0.
      line("bounds", fmt::format("within [{}, {}]", f.range.lo + 0.0, f.range.hi + 0.0), "no running maximum needed");
    } else {
      line("bounds", "none", "a running maximum is kept");
    }
  }

  void levels() {
    const Levels& l = mod_.levels;
    head(Of::Levels, "levels");
    const auto fields = [&](std::string_view name, ir::Level level, const std::vector<ir::Expr>& list) {
      for (std::size_t i = 0; i < list.size(); ++i)
        line(name, fmt::format("{} = {}", show(ir::field(level, static_cast<std::uint32_t>(i), list[i]->type)),
                               show(list[i])));
    };
    fields("head", ir::Level::Head, l.head);
    fields("row", ir::Level::Row, l.row);
    fields("column", ir::Level::Col, l.col);
    constexpr std::array names{"score", "mask", "prob"};
    const std::array roots{mod_.score, mod_.mask, mod_.prob};
    for (std::size_t i = 0; i < l.element.size(); ++i)
      if (roots[i]->op != ir::Op::Input && roots[i]->op != ir::Op::Literal)
        line("element", fmt::format("{} = {}", names[i], show(l.element[i])));
  }

  void derivatives() {
    head(Of::Derivatives, "derivatives");
    line("score", "d score / d s = " + ir::print_derivative(mod_.dscore.by, names_));
    if (mod_.prob->op != ir::Op::Input) line("prob", "d prob / d p = " + ir::print_derivative(mod_.dprob.by, names_));
    for (const Derivative* d : {&mod_.dscore, &mod_.dprob, &mod_.dsink})
      for (const Scatter& s : d->captures)
        line("capture", print(s, mod_),
             d == &mod_.dscore  ? "times the score's gradient"
             : d == &mod_.dprob ? "times the probability's gradient"
                                : "times the sink's gradient");
  }

  void times(const Steps& steps) {
    std::string list;
    for (const Steps::Step& s : steps.steps)
      if (s.took.count() > 0)
        list += fmt::format("{}{} {:.1f} µs", list.empty() ? "" : ", ", s.name,
                            static_cast<double>(s.took.count()) / 1e3);
    if (list.empty()) return;
    head(Of::Times, "time");
    add("  " + list + "\n");
  }

  const LoweredMod& lowered_;
  const Mod& mod_;
  ir::Signature names_;
  std::vector<Section> out_;
};

bool is_input(const ir::Expr& e, ir::Input which) {
  return e->op == ir::Op::Input && e->bits == static_cast<std::uint32_t>(which);
}

bool is_whole(const Band& band, ir::Input axis) {
  if (axis == ir::Input::KV) return ir::is_literal(band.begin, 0) && is_input(band.end, ir::Input::KVLen);
  return is_input(band.begin, ir::Input::QBegin) && is_input(band.end, ir::Input::QEnd);
}

/// A band that exists only on a condition: the condition, and whether the band exists when it is true or when it is
/// false.
struct Condition {
  ir::Expr on;
  bool there_if = true;
  ir::Expr end;  ///< the band's end if it exists
};
std::optional<Condition> condition(const Band& b) {
  if (b.end->op != ir::Op::Where) return std::nullopt;
  for (const std::size_t empty : {2u, 1u})
    if (ir::same(b.end->args[empty], b.begin)) return Condition{b.end->args[0], empty == 2u, b.end->args[3 - empty]};
  return std::nullopt;
}

/// kv in [0, q_end), followed by the condition on which the band exists.
std::string band(const Band& b, ir::Input axis, const ir::Signature& names) {
  const auto on = condition(b);
  const std::string when = on ? (on->there_if ? " if " : " unless ") + ir::print(on->on, names) : "";
  const Band there{b.begin, on ? on->end : b.end};
  const std::string_view name = axis == ir::Input::KV ? "kv" : "q";
  if (is_whole(there, axis)) return fmt::format("any {}{}", name, when);
  return fmt::format("{} in [{}, {}){}", name, ir::print(there.begin, names), ir::print(there.end, names), when);
}

std::string bands(const Bands& all, ir::Input axis, const ir::Signature& names) {
  const bool kv = axis == ir::Input::KV;
  std::string out = row(kv ? "along kv" : "along q", form(all, axis, names),
                        kv ? "for queries [q_begin, q_end)" : "for keys [kv_begin, kv_end)");
  // Print each line once: several parts of a mask may give the same band, and one part may stop both the kept and the
  // gone bands.
  std::vector<std::string> printed;
  const auto add = [&](std::string line) {
    if (std::find(printed.begin(), printed.end(), line) != printed.end()) return;
    out += line;
    printed.push_back(std::move(line));
  };
  for (const auto& [name, list] : {std::pair{"keeps", &all.kept}, {"drops", &all.gone}}) {
    if (list->empty()) add(row(name, "nothing"));
    for (const Band& b : *list) add(row(name, band(b, axis, names), b.exact ? "" : "at most"));
  }
  // If the analysis stops at a part of a mask, it also stops at the expressions around that part, and each of those is
  // as long as everything it contains.
  constexpr std::size_t most_stops = 8;
  for (std::size_t i = 0; i < std::min(all.stops.size(), most_stops); ++i)
    add(row("stopped", ir::print(all.stops[i].at, names), all.stops[i].why));
  if (all.stops.size() > most_stops) add(row("stopped", fmt::format("{} more parts", all.stops.size() - most_stops)));
  return out;
}

std::string_view word(Summary::Of of) {
  switch (of) {
    case Summary::Of::Least: return "least";
    case Summary::Of::Greatest: return "greatest";
    case Summary::Of::Sorted: return "sorted";
    case Summary::Of::RunFirst: return "run first";
    case Summary::Of::RunLast: return "run last";
  }
  return "";
}

}  // namespace

std::string form(const Bands& all, ir::Input axis, const ir::Signature& names) {
  if (all.exact()) return "closed form";
  // All inexact bands may share one condition.
  std::optional<Condition> once;
  bool on_condition = true, bounded = false;
  for (const auto* list : {&all.kept, &all.gone}) {
    bounded |= list->empty();
    for (const Band& b : *list) {
      bounded |= !is_whole(b, axis);
      if (b.exact) continue;
      const auto on = condition(b);
      if (on && !once) once = on;
      on_condition &= on && ir::same(on->on, once->on) && on->there_if == once->there_if;
    }
  }
  if (on_condition) return (once->there_if ? "closed form unless " : "closed form if ") + ir::print(once->on, names);
  return bounded ? "bounds, and intervals within them" : "no bounds, intervals for every tile";
}

std::string print(const Summary& s, const ir::Signature& of_mod) {
  return fmt::format("{} of {}", word(s.of), of_mod.captures[s.capture].name);
}

std::string explain(const Cover& cover, const ir::Signature& of_mod) {
  const ir::Signature names = cover.signature(of_mod);
  std::string out = bands(cover.along_kv, ir::Input::KV, names) + bands(cover.along_q, ir::Input::Q, names);
  for (std::size_t i = 0; i < of_mod.captures.size(); ++i) {
    std::string list;
    for (const Summary& s : cover.summaries)
      if (s.capture == i) list += fmt::format("{}{}", list.empty() ? "" : ", ", word(s.of));
    if (!list.empty()) out += row("data", of_mod.captures[i].name, list);
  }
  if (cover.by_batch || cover.by_head)
    out += row("varies", cover.by_batch && cover.by_head ? "by batch entry and head"
                         : cover.by_head                 ? "by head"
                                                         : "by batch entry");
  return out;
}

std::vector<Section> sections(const LoweredMod& lowered, const Steps& steps) { return Page(lowered).run(steps); }

std::string explain(const LoweredMod& lowered, const Steps& steps) {
  std::string out;
  for (const Section& s : sections(lowered, steps))
    out += fmt::format("{}{}\n{}", out.empty() ? "" : "\n", s.title, s.lines);
  return out;
}

// Prints the scatter as if it were still inside its sums, so that loop variables have the names of the sums' variables.
std::string print(const Scatter& scatter, const Mod& mod) {
  ir::Signature names = mod.signature();
  std::string loops;
  ir::Expr value = scatter.value;
  std::vector<ir::Expr> index = scatter.index;
  for (const Scatter::Loop& loop : scatter.loops) {
    const std::string name = "n" + std::to_string(loop.binder);
    loops += fmt::format("for {} < {}: ", name, loop.count);
    const ir::Expr stand_in = ir::param(static_cast<std::uint32_t>(names.params.size()), ir::Type::I32);
    names.params.push_back({name, ir::Type::I32});
    value = ir::rename(value, ir::bound(loop.binder), stand_in);
    for (ir::Expr& i : index) i = ir::rename(i, ir::bound(loop.binder), stand_in);
  }
  std::string indices;
  for (const ir::Expr& i : index) indices += (indices.empty() ? "" : ", ") + ir::print(i, names);
  return fmt::format("{}{}[{}] += {}", loops, names.captures[scatter.capture].name, indices,
                     ir::print_derivative(value, names));
}

}  // namespace attune::compiler

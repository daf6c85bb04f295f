// compiler/explain.cpp — a Mod as a page of text
#include "compiler/explain.h"

#include <array>

#include <fmt/format.h>

#include "compiler/level.h"
#include "ir/print.h"

namespace attune::compiler {
namespace {

class Page {
 public:
  explicit Page(const Mod& mod) : mod_(mod), names_(mod.signature()) {}

  std::string run(const Steps& steps) {
    roots();
    captures();
    simplified(steps);
    free();
    levels();
    derivatives();
    times(steps);
    return std::move(out_);
  }

 private:
  std::string show(const ir::Expr& e) const { return ir::print(e, names_); }
  void head(std::string_view title) { out_ += fmt::format("{}{}\n", out_.empty() ? "" : "\n", title); }
  void line(std::string_view name, std::string_view text, std::string_view note = "") {
    out_ += fmt::format("  {:<9}{}{}{}\n", name, text, note.empty() ? "" : "   — ", note);
  }

  void roots() {
    head("what you wrote, simplified");
    line("score", show(mod_.score));
    line("mask", show(mod_.mask), ir::is_literal(mod_.mask, 1) ? "every pair stays" : "");
    if (mod_.prob->op != ir::Op::Input) line("prob", show(mod_.prob));
    if (mod_.sink) line("sink", show(mod_.sink));
  }

  void captures() {
    if (mod_.captures.empty() && mod_.params.empty()) return;
    head("arguments of the kernel: changing them compiles nothing");
    for (const CaptureSlot& c : mod_.captures) line(c.name, fmt::format("{} of rank {}", name_of(c.dtype), c.rank));
    for (const ir::Signature::Param& p : mod_.params) line(p.name, fmt::format("{} parameter", name_of(p.type)));
  }

  void simplified(const Steps& steps) {
    if (steps.rewrites.empty()) return;
    head("simplified");
    for (const Rewrite& r : steps.rewrites)
      out_ += fmt::format("  {}  →  {}   — {}\n", show(r.from), show(r.to), r.rule);
  }

  void free() {
    const Fold& f = mod_.fold;
    head("free in the softmax");
    const bool cancels = !ir::is_literal(f.row, 0);
    if (cancels) line("row", show(f.row), "cancels along a row; added back to lse");
    if (f.affine) {
      line("scale", show(f.scale), "folds into the exponent");
      if (!ir::is_literal(f.bias, 0)) line("bias", show(f.bias));
    } else {
      line("core", show(f.core), "not affine in s: evaluated per element");
    }
    if (f.bounded()) {
      line("bounds", fmt::format("within [{}, {}]", f.range.lo, f.range.hi), "no running maximum needed");
    } else {
      line("bounds", "none", "a running maximum is kept");
    }
  }

  void levels() {
    const Levels& l = mod_.levels;
    head("levels");
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
    for (std::size_t i = 0; i < l.left.size(); ++i)
      if (roots[i]->op != ir::Op::Input && roots[i]->op != ir::Op::Literal)
        line("element", fmt::format("{} = {}", names[i], show(l.left[i])));
  }

  void derivatives() {
    head("derivatives");
    line("score", "d score / d s = " + show(mod_.dscore.by));
    if (mod_.prob->op != ir::Op::Input) line("prob", "d prob / d p = " + show(mod_.dprob.by));
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
    head("time");
    out_ += "  " + list + "\n";
  }

  const Mod& mod_;
  ir::Signature names_;
  std::string out_;
};

}  // namespace

std::string explain(const Mod& mod, const Steps& steps) { return Page(mod).run(steps); }

// The variables of the loops print as those of the sums they come from: the scatter is printed as if it still stood
// inside of them.
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
  return fmt::format("{}{}[{}] += {}", loops, names.captures[scatter.capture].name, indices, ir::print(value, names));
}

}  // namespace attune::compiler

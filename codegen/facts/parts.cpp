// codegen/facts/parts.cpp — a Mod's expressions as CPU kernels take them: split by level, with what the forward must
// know of them
#include "codegen/facts/parts.h"

#include <algorithm>

#include "compiler/fold.h"
#include "ir/range.h"

namespace attune::codegen {

using ir::Expr, ir::Input, ir::Op;

namespace {

/// True if `e` is p times something that does not depend on p; `by_pieces`: or is one of several such, and p may choose
/// which.
bool multiple_of_p(const Expr& e, bool by_pieces) {
  const auto free_of_p = [](const Expr& x) { return !ir::uses(x, Input::P); };
  const auto is_multiple = [&](const Expr& x) { return multiple_of_p(x, by_pieces); };
  if (e->op == Op::Input) return e->bits == static_cast<std::uint32_t>(Input::P);
  if (ir::is_literal(e, 0)) return true;
  const auto args = e->arguments();
  switch (e->op) {
    case Op::Mul: return (free_of_p(args[0]) && is_multiple(args[1])) || (is_multiple(args[0]) && free_of_p(args[1]));
    case Op::Div: return is_multiple(args[0]) && free_of_p(args[1]);
    case Op::Neg: return is_multiple(args[0]);
    case Op::Add:
    case Op::Sub: return is_multiple(args[0]) && is_multiple(args[1]);
    case Op::Min:
    case Op::Max: return by_pieces && is_multiple(args[0]) && is_multiple(args[1]);
    case Op::Where: return (by_pieces || free_of_p(args[0])) && is_multiple(args[1]) && is_multiple(args[2]);
    default: return false;  // unknown expressions take the general way, which is always right
  }
}

}  // namespace

bool linear_in_p(const Expr& e) { return multiple_of_p(e, false); }

bool delta_is_of_o(const Expr& prob) {
  // Unless a custom expression gives another prob'.
  const auto is_custom = [](const Expr& e) { return e->op == Op::Custom; };
  return multiple_of_p(prob, true) && std::ranges::none_of(ir::in_order(prob), is_custom);
}

bool keeps_zero(const Expr& prob) {
  if (delta_is_of_o(prob)) return true;
  const Expr p = ir::input(Input::P);
  const ir::Interval at_zero = ir::range(ir::substitute(prob, {{p->digest, ir::real(0)}}));
  return at_zero.numbers() && at_zero.lo == 0 && at_zero.hi == 0;
}

namespace {

using Roots = std::vector<Expr>;

Roots forward_roots(const compiler::Mod& mod) { return {mod.fold.core, mod.mask, mod.prob, mod.fold.row}; }

void fill(ForwardParts& out, const compiler::Mod& mod, const Roots& roots) {
  out.levels = compiler::level(roots);
  out.masked = !ir::is_literal(mod.mask, 1);
  out.has_prob = mod.prob->op != Op::Input;
  out.prob_linear = linear_in_p(mod.prob);
  out.has_row_term = !ir::is_literal(mod.fold.row, 0);
}

bool varies_by_lane(const Expr& e) { return ir::uses(e, Input::KV) || ir::uses(e, Input::S) || ir::uses(e, Input::P); }

/// The change of an Int from column to column (except for wrapping), if it is the same everywhere.
std::optional<int> step(const Expr& e, int depth = 0) {
  // Indices are short sums; deeper expressions count as unknown.
  constexpr int deepest = 16;
  if (!varies_by_lane(e)) return 0;
  if (e->op == Op::Input) return 1;
  if (depth == deepest || (e->op != Op::Add && e->op != Op::Sub && e->op != Op::Neg)) return std::nullopt;
  const auto a = step(e->args[0], depth + 1), b = e->op == Op::Neg ? a : step(e->args[1], depth + 1);
  if (!a || !b) return std::nullopt;
  return e->op == Op::Neg ? -*a : e->op == Op::Add ? *a + *b : *a - *b;
}

Scattered scattered(const compiler::Scatter& scatter, bool by_prob, std::size_t first) {
  using Reach = Scattered::Reach;
  Scattered out{.capture = scatter.capture,
                .by_prob = by_prob,
                .loops = scatter.loops,
                .rank = scatter.index.size(),
                .first = first,
                .reach = Reach::Head,
                .step = 0,
                .plain = {}};
  for (std::size_t i = 0; i < out.rank; ++i) {
    const Expr& index = scatter.index[i];
    out.plain.push_back(index->op == Op::Input ? std::optional(static_cast<Input>(index->bits)) : std::nullopt);
    if (varies_by_lane(index)) {
      const int by = i + 1 == out.rank ? step(index).value_or(0) : 0;
      out.step = by == 1 || by == -1 ? by : 0;
      out.reach = out.step && out.reach != Reach::Any ? Reach::Run : Reach::Any;
    } else if (ir::uses(index, Input::Q) && out.reach == Reach::Head) {
      out.reach = Reach::Row;
    }
  }
  return out;
}

}  // namespace

ForwardParts forward_parts(const compiler::Mod& mod) {
  ForwardParts out;
  fill(out, mod, forward_roots(mod));
  return out;
}

BackwardParts backward_parts(const compiler::Mod& mod, const Wanted& wanted) {
  BackwardParts out;
  Roots roots = forward_roots(mod);
  roots.insert(roots.end(), {mod.dscore.by, mod.dprob.by});
  const auto add = [&](const compiler::Derivative& derivative, bool by_prob) {
    for (const compiler::Scatter& scatter : derivative.captures) {
      if (!wanted[scatter.capture]) continue;
      out.scattered.push_back(scattered(scatter, by_prob, roots.size()));
      roots.insert(roots.end(), scatter.index.begin(), scatter.index.end());
      roots.push_back(scatter.value);
    }
  };
  add(mod.dscore, false);
  add(mod.dprob, true);
  fill(out, mod, roots);
  out.prob_linear = delta_is_of_o(mod.prob);
  return out;
}

}  // namespace attune::codegen

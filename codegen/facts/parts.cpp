// codegen/facts/parts.cpp — a Mod's expressions as CPU kernels take them: split by level, with what the forward must
// know of them
#include "codegen/facts/parts.h"

#include <algorithm>

#include "compiler/fold.h"
#include "ir/range.h"

namespace attune::codegen {

using ir::Expr, ir::Input, ir::Op;

namespace {

/// How an expression scales with p: c p makes it c^degree times as much, for every c > 0.
struct Scaling {
  double degree = 0;
  bool by_pieces = false;  ///< it is one of several expressions, and p may choose which
};

/// Null for unknown expressions, which take the general way, which is always right.
std::optional<Scaling> scaling_of(const Expr& prob) {
  ir::DigestMap<std::optional<Scaling>> found;
  const auto uses_p = [](const Expr& x) { return ir::uses(x, Input::P); };
  const auto one_of = [&](const Expr& a, const Expr& b, bool by_pieces) -> std::optional<Scaling> {
    const auto &x = found.at(a->digest), &y = found.at(b->digest);
    if (!x || !y) return std::nullopt;
    // 0 scales in every way.
    const bool any_x = ir::is_literal(a, 0), any_y = ir::is_literal(b, 0);
    if (!any_x && !any_y && x->degree != y->degree) return std::nullopt;
    return Scaling{any_x ? y->degree : x->degree, by_pieces || x->by_pieces || y->by_pieces};
  };
  const auto scaling = [&](const Expr& e) -> std::optional<Scaling> {
    if (!uses_p(e)) return Scaling{};
    if (e->op == Op::Input) return Scaling{1};
    const auto args = e->arguments();
    switch (e->op) {
      case Op::Neg: return found.at(args[0]->digest);
      case Op::Add:
      case Op::Sub: return one_of(args[0], args[1], false);
      case Op::Min:
      case Op::Max: return one_of(args[0], args[1], true);
      case Op::Where: return one_of(args[1], args[2], uses_p(args[0]));
      case Op::Mul: {
        const auto &x = found.at(args[0]->digest), &y = found.at(args[1]->digest);
        if (!x || !y) return std::nullopt;
        return Scaling{x->degree + y->degree, x->by_pieces || y->by_pieces};
      }
      // Divided by p, prob(0) would be NaN.
      case Op::Div: return uses_p(args[1]) ? std::nullopt : found.at(args[0]->digest);
      case Op::Sqrt: {
        const auto& x = found.at(args[0]->digest);
        return x ? std::optional(Scaling{x->degree / 2, x->by_pieces}) : std::nullopt;
      }
      default: return std::nullopt;
    }
  };
  for (const Expr& e : ir::in_order(prob)) found.emplace(e->digest, scaling(e));
  return found.at(prob->digest);
}

}  // namespace

double degree_in_p(const Expr& prob) {
  if (ir::is_literal(prob, 0)) return 1;
  const auto found = scaling_of(prob);
  // Kernels have powers and their sums up to some 2^27: to the fourth, f32 holds them.
  constexpr double most = 4;
  return found && !found->by_pieces && found->degree <= most ? found->degree : 0;
}

double delta_degree(const Expr& prob) {
  // A custom expression may give another prob'.
  const auto is_custom = [](const Expr& e) { return e->op == Op::Custom; };
  if (ir::is_literal(prob, 0)) return 1;
  const auto found = scaling_of(prob);
  if (!found || std::ranges::any_of(ir::in_order(prob), is_custom)) return 0;
  // Where a row's p are 1 / n, o is some n^(1 - k), which f16 cannot hold where k is 3 and n a thousand.
  constexpr double most = 2;
  return found->degree <= most ? found->degree : 0;
}

bool keeps_zero(const Expr& prob) {
  if (const auto found = scaling_of(prob); found && found->degree > 0) return true;
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
  out.delta_degree = delta_degree(mod.prob);
  return out;
}

}  // namespace attune::codegen

// compiler/derive.cpp — reverse mode over one expression, one case per operation
#include "compiler/derive.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include <attune/error.h>

namespace attune::compiler {
namespace {

using ir::Expr, ir::Op, ir::Type;

Expr neg(const Expr& a) { return ir::op(Op::Neg, a); }
Expr add(const Expr& a, const Expr& b) { return a ? ir::op(Op::Add, a, b) : b; }
Expr sub(const Expr& a, const Expr& b) { return ir::op(Op::Sub, a, b); }
Expr div(const Expr& a, const Expr& b) { return ir::op(Op::Div, a, b); }
Expr mul(const Expr& a, const Expr& b) {
  if (ir::is_literal(a, 1)) return b;
  if (ir::is_literal(b, 1)) return a;
  return ir::op(Op::Mul, a, b);
}
Expr both(const Expr& a, const Expr& b) { return a ? ir::op(Op::And, a, b) : b; }
/// A factor or divisor that makes 0 of 0.
bool harmless(const Expr& e) {
  return ir::is_literal(e) && std::isfinite(ir::literal_value(*e)) && ir::literal_value(*e) != 0;
}
Expr real(float value) { return ir::real(value); }
// ln 2 as an expression: exact to the precision it is evaluated in.
Expr ln2() { return ir::op(Op::Log, real(2)); }
// 2 / sqrt(pi) as the sum of two Floats: the first alone in f32, 48 bits in f64.
Expr two_over_root_pi() { return ir::op(Op::Add, real(0x1.20dd76p+0f), real(-0x1.3b07b2p-25f)); }

/// What is known of a node while its users are done and it is next.
struct Adjoint {
  Expr all;       ///< of the upstream, for s (or p) and captures
  Expr captures;  ///< what flows to captures alone, behind custom()
  Expr live;      ///< when some user takes this node; null: always, if `always`
  bool always = false;
};

class Reverse {
 public:
  Reverse(std::optional<ir::Input> by, Derivative& into) : by_(by), into_(into) {}

  /// Adds the derivative of `root` times its adjoint. Inside of sums, `by` gathers what flows to s (or p).
  void run(const Expr& root, Adjoint seed, Expr& by) {
    ir::DigestMap<Adjoint> adjoints;
    adjoints.emplace(root->digest, std::move(seed));
    const std::vector<Expr> order = ir::in_order(std::span(&root, 1), ir::SumBodies::Skip);
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      const auto found = adjoints.find((*node)->digest);
      if (found == adjoints.end()) continue;
      Pass pass{*this, adjoints, found->second, *node, by};
      pass.node();
    }
  }

  std::vector<Scatter::Loop> loops;   ///< the open sums, outermost first
  std::vector<Expr> variables;        ///< their variables

 private:
  struct Pass {
    Reverse& reverse;
    ir::DigestMap<Adjoint>& adjoints;
    const Adjoint adjoint;
    const Expr& e;
    Expr& by;

    /// The argument gets upstream * factor(upstream) — wherever this node is taken at all, if `risky`: a factor may be
    /// inf or NaN where another branch was taken, and 0 * inf is no 0.
    template <class F>
    void give(const Expr& arg, F times, bool risky = true) {
      if (arg->type != Type::F32) return;
      const auto guarded = [&](const Expr& upstream) -> Expr {
        if (!upstream) return nullptr;
        const Expr value = times(upstream);
        return risky && !adjoint.always ? ir::op(Op::Where, adjoint.live, value, real(0)) : value;
      };
      reach(arg, guarded(adjoint.all), guarded(adjoint.captures), adjoint.always ? nullptr : adjoint.live);
    }

    /// The argument gets the upstream where `taken`, and nothing elsewhere.
    void choose(const Expr& arg, const Expr& taken) {
      if (arg->type != Type::F32) return;
      const auto chosen = [&](const Expr& upstream) -> Expr {
        return upstream ? ir::op(Op::Where, taken, upstream, real(0)) : nullptr;
      };
      reach(arg, chosen(adjoint.all), chosen(adjoint.captures), both(adjoint.always ? nullptr : adjoint.live, taken));
    }

    void reach(const Expr& arg, const Expr& all, const Expr& captures, const Expr& live) {
      if (arg->op == Op::Literal || arg->op == Op::Param) return;
      Adjoint& a = adjoints[arg->digest];
      if (all) a.all = add(a.all, all);
      if (captures) a.captures = add(a.captures, captures);
      if (!live) {
        a.always = true;
        a.live = nullptr;
      } else if (!a.always) {
        a.live = a.live ? ir::op(Op::Or, a.live, live) : live;
      }
    }

    void node();
    void read();
    void sum();
    void custom();
    void power();
  };

  std::optional<ir::Input> by_;
  Derivative& into_;
};

// min and max pass to the first on a tie, and to the other one when one is NaN.
Expr takes_first(Op op, const Expr& a, const Expr& b) {
  const Expr wins = ir::op(op == Op::Max ? Op::Ge : Op::Le, a, b);
  if (ir::is_literal(b)) return wins;
  return ir::op(Op::Or, wins, ir::op(Op::Ne, b, b));
}

void Reverse::Pass::node() {
  const auto& a = e->args;
  const auto scaled = [](Expr factor) { return [factor](const Expr& up) { return mul(up, factor); }; };
  const auto same = [](const Expr& up) { return up; };
  switch (e->op) {
    case Op::Literal:
    case Op::Param:
    case Op::Bound:
    case Op::Field:
    case Op::Random:
    case Op::F32:  // of an Int or a Bool
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc: return;
    case Op::Input:
      if (adjoint.all && reverse.by_ && static_cast<ir::Input>(e->bits) == *reverse.by_) by = add(by, adjoint.all);
      return;
    case Op::Read: return read();
    case Op::Sum: return sum();
    case Op::Custom: return custom();
    case Op::Where:
      choose(a[1], a[0]);
      choose(a[2], ir::op(Op::Not, a[0]));
      return;
    case Op::Add:
      give(a[0], same, false);
      give(a[1], same, false);
      return;
    case Op::Sub:
      give(a[0], same, false);
      give(a[1], neg, false);
      return;
    case Op::Neg: give(a[0], neg, false); return;
    case Op::Mul:
      give(a[0], scaled(a[1]), !harmless(a[1]));
      give(a[1], scaled(a[0]), !harmless(a[0]));
      return;
    case Op::Div:
      give(a[0], [&](const Expr& up) { return div(up, a[1]); }, !harmless(a[1]));
      give(a[1], [&](const Expr& up) { return neg(mul(up, div(e, a[1]))); });
      return;
    case Op::Min:
    case Op::Max: {
      const Expr first = takes_first(e->op, a[0], a[1]);
      choose(a[0], first);
      choose(a[1], ir::op(Op::Not, first));
      return;
    }
    case Op::Clamp: {
      const Expr raised = ir::op(Op::Max, a[0], a[1]);
      const Expr above = takes_first(Op::Max, a[0], a[1]), below = takes_first(Op::Min, raised, a[2]);
      choose(a[0], ir::op(Op::And, above, below));
      choose(a[1], ir::op(Op::And, ir::op(Op::Not, above), below));
      choose(a[2], ir::op(Op::Not, below));
      return;
    }
    case Op::Abs:
      give(a[0], [&](const Expr& up) {
        const Expr falls = ir::op(Op::Where, ir::op(Op::Lt, a[0], real(0)), neg(up), real(0));
        return ir::op(Op::Where, ir::op(Op::Gt, a[0], real(0)), up, falls);
      }, false);
      return;
    case Op::Sqrt: give(a[0], [&](const Expr& up) { return div(mul(up, real(0.5f)), e); }); return;
    case Op::Rsqrt: give(a[0], scaled(mul(real(-0.5f), mul(e, mul(e, e))))); return;
    case Op::Exp: give(a[0], scaled(e)); return;
    case Op::Exp2: give(a[0], scaled(mul(e, ln2()))); return;
    case Op::Log: give(a[0], [&](const Expr& up) { return div(up, a[0]); }); return;
    case Op::Log2: give(a[0], [&](const Expr& up) { return div(up, mul(a[0], ln2())); }); return;
    case Op::Pow: return power();
    case Op::Sin: give(a[0], scaled(ir::op(Op::Cos, a[0]))); return;
    case Op::Cos: give(a[0], scaled(neg(ir::op(Op::Sin, a[0])))); return;
    case Op::Tan: give(a[0], scaled(ir::op(Op::Add, real(1), mul(e, e)))); return;
    case Op::Tanh: give(a[0], scaled(sub(real(1), mul(e, e)))); return;
    case Op::Sigmoid: give(a[0], scaled(mul(e, sub(real(1), e)))); return;
    case Op::Erf:
      give(a[0], scaled(mul(two_over_root_pi(), ir::op(Op::Exp, neg(mul(a[0], a[0]))))));
      return;
    case Op::And:
    case Op::Or:
    case Op::Not:
    case Op::Eq:
    case Op::Ne:
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge:
    case Op::BitOr:
    case Op::BitXor:
    case Op::BitAnd:
    case Op::BitNot:
    case Op::Shl:
    case Op::Shr:
    case Op::Rem:
    case Op::I32:
    case Op::FloorDiv:
    case Op::FloorMod: throw Bug("the derivative reached an operation that gives no Float");
  }
}

// x^y: y x^(y-1) and x^y ln x; where the exponent is 0 or the base is 0 the other factor may be infinite, and the
// limit is 0.
void Reverse::Pass::power() {
  const auto& [x, y] = std::tie(e->args[0], e->args[1]);
  const Expr one_less = ir::op(Op::Pow, x, sub(y, real(1)));
  give(x, [&](const Expr& up) {
    const Expr slope = mul(up, mul(y, one_less));
    return ir::is_literal(y) && !ir::is_literal(y, 0)
               ? slope
               : ir::op(Op::Where, ir::op(Op::Eq, y, real(0)), real(0), slope);
  });
  give(y, [&](const Expr& up) {
    const Expr flat = ir::op(Op::And, ir::op(Op::Eq, x, real(0)), ir::op(Op::Ge, y, real(0)));
    return ir::op(Op::Where, flat, real(0), mul(up, mul(e, ir::op(Op::Log, x))));
  });
}

void Reverse::Pass::custom() {
  if (adjoint.all && reverse.by_) {
    const Expr slope = mul(adjoint.all, e->args[1]);
    by = add(by, adjoint.always ? slope : ir::op(Op::Where, adjoint.live, slope, real(0)));
  }
  const Expr captures = adjoint.all ? add(adjoint.captures, adjoint.all) : adjoint.captures;
  if (e->args[0]->reads) reach(e->args[0], nullptr, captures, adjoint.always ? nullptr : adjoint.live);
}

void Reverse::Pass::read() {
  Scatter scatter{.capture = e->bits, .index = {}, .value = nullptr, .loops = reverse.loops};
  scatter.value = adjoint.all ? add(adjoint.captures, adjoint.all) : adjoint.captures;
  scatter.index.assign(e->arguments().begin(), e->arguments().end());
  // Innermost first: a loop whose variable the index does not use is a sum of the value; the others get binders of
  // their own, above every binder below them.
  for (std::size_t i = scatter.loops.size(); i-- > 0;) {
    const Expr& variable = reverse.variables[i];
    const auto mentions = [&](const Expr& x) { return ir::mentions(x, variable); };
    Scatter::Loop& loop = scatter.loops[i];
    if (std::none_of(scatter.index.begin(), scatter.index.end(), mentions)) {
      scatter.value = ir::sum(variable, loop.count, scatter.value);
      scatter.loops.erase(scatter.loops.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    std::uint32_t below = scatter.value->binder;
    for (const Expr& x : scatter.index) below = std::max(below, x->binder);
    for (std::size_t j = i + 1; j < scatter.loops.size(); ++j) below = std::max(below, scatter.loops[j].binder);
    loop.binder = below + 1;
    const auto name = [&](const Expr& x) { return ir::rename(x, variable, ir::bound(loop.binder)); };
    scatter.value = name(scatter.value);
    for (Expr& x : scatter.index) x = name(x);
  }
  reverse.into_.captures.push_back(std::move(scatter));
}

void Reverse::Pass::sum() {
  const Expr variable = ir::fresh_bound();
  const Expr body = ir::rename(e->args[0], ir::bound(ir::sum_binder(*e)), variable);
  if (body->type != Type::F32) return;
  reverse.loops.push_back({0, ir::sum_count(*e)});
  reverse.variables.push_back(variable);
  Expr flows;
  reverse.run(body, adjoint, flows);
  reverse.loops.pop_back();
  reverse.variables.pop_back();
  if (flows) by = add(by, ir::sum(variable, ir::sum_count(*e), flows));
}

}  // namespace

Derivative derive(const ir::Expr& e, std::optional<ir::Input> by) {
  Derivative derivative;
  Reverse reverse(by, derivative);
  Expr flows;
  reverse.run(e, {.all = real(1), .captures = nullptr, .live = nullptr, .always = true}, flows);
  if (by) derivative.by = flows ? flows : real(0);
  return derivative;
}

}  // namespace attune::compiler

// compiler/derive.cpp — reverse-mode differentiation of one expression, one case per operation
#include "compiler/lower.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include <attune/error.h>

namespace attune::compiler {
namespace {

using ir::Expr, ir::Op, ir::Type;

Expr neg(const Expr& a) { return ir::op(Op::Neg, a); }
// Either may be null: a zero term.
Expr sum_of(const Expr& a, const Expr& b) { return a && b ? ir::op(Op::Add, a, b) : a ? a : b; }
Expr sub(const Expr& a, const Expr& b) { return ir::op(Op::Sub, a, b); }
Expr div(const Expr& a, const Expr& b) { return ir::op(Op::Div, a, b); }
Expr mul(const Expr& a, const Expr& b) {
  if (ir::is_literal(a, 1)) return b;
  if (ir::is_literal(b, 1)) return a;
  return ir::op(Op::Mul, a, b);
}
Expr where_both(const Expr& a, const Expr& b) { return a ? ir::op(Op::And, a, b) : b; }
Expr real(float value) { return ir::real(value); }
// ln 2 as an expression: accurate to the precision it is evaluated in.
Expr ln2() { return ir::op(Op::Log, real(2)); }
// 2 / sqrt(pi) as the sum of two Floats: the first alone in f32, 48 bits in f64.
Expr two_over_root_pi() { return ir::op(Op::Add, real(0x1.20dd76p+0f), real(-0x1.3b07b2p-25f)); }

/// The value where `live` holds, 0 elsewhere.
Expr where_live(const Expr& live, const Expr& value) {
  return live && value ? ir::op(Op::Where, live, value, real(0)) : value;
}

/// The two sides of one choice: `common && taken` and `common && !taken`, in either order; common may be null.
struct Choice {
  Expr common, taken;
  bool first;  ///< true if the left operand is the taken side
};
std::optional<Choice> one_choice(const Expr& left, const Expr& right) {
  if (!left || !right) return std::nullopt;
  const auto is_not = [](const Expr& no, const Expr& yes) { return no->op == Op::Not && ir::same(no->args[0], yes); };
  if (is_not(right, left)) return Choice{nullptr, left, true};
  if (is_not(left, right)) return Choice{nullptr, right, false};
  if (left->op != Op::And || right->op != Op::And || !ir::same(left->args[0], right->args[0])) return std::nullopt;
  if (is_not(right->args[1], left->args[1])) return Choice{left->args[0], left->args[1], true};
  if (is_not(left->args[1], right->args[1])) return Choice{left->args[0], right->args[1], false};
  return std::nullopt;
}

/// The sum of the adjoints that a node's users have passed to it so far.
struct Flow {
  Expr value;         ///< null: nothing
  Expr live;          ///< holds when at least one of these users takes the node; null: always
  bool bare = false;  ///< the value is valid only where live; elsewhere it may be anything, even NaN

  /// The value, 0 where the node is not taken: needed before adding it to another.
  Expr settled() const { return bare ? where_live(live, value) : value; }

  void add(const Flow& more) {
    if (!more.value) return;
    if (!value) {
      *this = more;
      return;
    }
    if (bare && more.bare && ir::same(live, more.live)) {
      value = ir::op(Op::Add, value, more.value);
      return;
    }
    const auto choice = bare && more.bare ? one_choice(live, more.live) : std::nullopt;
    if (choice) {
      const Expr &taken = choice->first ? value : more.value, &other = choice->first ? more.value : value;
      *this = {ir::op(Op::Where, choice->taken, taken, other), choice->common, choice->common != nullptr};
      return;
    }
    value = ir::op(Op::Add, settled(), more.settled());
    live = live && more.live ? ir::op(Op::Or, live, more.live) : nullptr;
    bare = false;
  }
};

struct Adjoint {
  Flow all;       ///< flows on to s (or p) and to captures
  Flow captures;  ///< flows on to captures alone: the part inside custom()
};

class Reverse {
 public:
  Reverse(std::optional<ir::Input> by, Derivative& into) : by_(by), into_(into) {}

  /// Adds the derivative of `root` times its adjoint. `by` collects the derivative by s (or p); inside sums, `around`
  /// holds the adjoints outside the innermost sum.
  void run(const Expr& root, Adjoint seed, Expr& by, ir::DigestMap<Adjoint>* around = nullptr) {
    ir::DigestMap<Adjoint> adjoints;
    adjoints.emplace(root->digest, std::move(seed));
    // Includes the bodies of sums: nodes that bodies hand out (see hand_out) then follow all sums that contain them.
    const std::vector<Expr> order = ir::in_order(root);
    for (auto node = order.rbegin(); node != order.rend(); ++node) {
      const auto found = adjoints.find((*node)->digest);
      if (found == adjoints.end()) continue;
      Pass pass{*this, adjoints, around, found->second, *node, by};
      pass.node();
    }
  }

  std::vector<Scatter::Loop> loops;  ///< the open sums, outermost first
  std::vector<Expr> variables;       ///< their variables

 private:
  struct Pass {
    Reverse& reverse;
    ir::DigestMap<Adjoint>& adjoints;
    ir::DigestMap<Adjoint>* around;
    const Adjoint adjoint;
    const Expr& e;
    Expr& by;

    /// Passes times(upstream) to the argument where this node is taken. Never uses the value of a dead branch: a factor
    /// may be inf or NaN there, and 0 * inf is not 0.
    template <class F>
    void give(const Expr& arg, F times) {
      const auto flow = [&](const Flow& f) {
        return f.value ? Flow{times(f.value), f.live, f.live != nullptr} : Flow{};
      };
      if (arg->type == Type::F32) reach(adjoints, arg, {flow(adjoint.all), flow(adjoint.captures)});
    }

    /// Passes the upstream to the argument where this node is taken and `taken` holds.
    void choose(const Expr& arg, const Expr& taken) {
      const auto flow = [&](const Flow& f) {
        return f.value ? Flow{f.value, where_both(f.live, taken), true} : Flow{};
      };
      if (arg->type == Type::F32) reach(adjoints, arg, {flow(adjoint.all), flow(adjoint.captures)});
    }

    static void reach(ir::DigestMap<Adjoint>& into, const Expr& arg, const Adjoint& more) {
      if (arg->op == Op::Literal || arg->op == Op::Param) return;
      Adjoint& a = into[arg->digest];
      a.all.add(more.all);
      a.captures.add(more.captures);
    }

    void node();
    void read();
    void sum();
    void hand_out();
    void custom();
    void power();
  };

  std::optional<ir::Input> by_;
  Derivative& into_;
};

// On a tie, min and max pass the adjoint to the first argument; if one argument is NaN, to the other one.
Expr takes_first(Op op, const Expr& a, const Expr& b) {
  const Expr wins = ir::op(op == Op::Max ? Op::Ge : Op::Le, a, b);
  if (ir::is_literal(b) && !std::isnan(ir::literal_value(*b))) return wins;
  return ir::op(Op::Or, wins, ir::op(Op::Ne, b, b));
}

// One case per operation, which makes the function long.
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
    case Op::Kept:
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc: return;
    case Op::Input:
      if (reverse.by_ && static_cast<ir::Input>(e->bits) == *reverse.by_) by = sum_of(by, adjoint.all.settled());
      return;
    case Op::Read: return read();
    case Op::Sum: return sum();
    case Op::Custom: return custom();
    case Op::Where:
      choose(a[1], a[0]);
      choose(a[2], ir::op(Op::Not, a[0]));
      return;
    case Op::F32: give(a[0], same); return;  // only a Float argument receives it, not an Int or a Bool
    case Op::Add:
      give(a[0], same);
      give(a[1], same);
      return;
    case Op::Sub:
      give(a[0], same);
      give(a[1], neg);
      return;
    case Op::Neg: give(a[0], neg); return;
    case Op::Mul:
      give(a[0], scaled(a[1]));
      give(a[1], scaled(a[0]));
      return;
    case Op::Div:
      give(a[0], [&](const Expr& up) { return div(up, a[1]); });
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
      });
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
    case Op::Erf: give(a[0], scaled(mul(two_over_root_pi(), ir::op(Op::Exp, neg(mul(a[0], a[0])))))); return;
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

// x^y has the derivatives y x^(y-1) and x^y ln x. Where the exponent or the base is 0 the other factor may be infinite;
// the limit is 0.
void Reverse::Pass::power() {
  const Expr &x = e->args[0], &y = e->args[1];
  const Expr one_less = ir::op(Op::Pow, x, sub(y, real(1)));
  give(x, [&](const Expr& up) {
    const Expr slope = mul(up, mul(y, one_less));
    return ir::is_literal(y) && !ir::is_literal(y, 0) ? slope
                                                      : ir::op(Op::Where, ir::op(Op::Eq, y, real(0)), real(0), slope);
  });
  give(y, [&](const Expr& up) {
    const Expr flat = ir::op(Op::And, ir::op(Op::Eq, x, real(0)), ir::op(Op::Ge, y, real(0)));
    return ir::op(Op::Where, flat, real(0), mul(up, mul(e, ir::op(Op::Log, x))));
  });
}

void Reverse::Pass::custom() {
  Flow slope = adjoint.all;
  if (slope.value) slope = {mul(slope.value, e->args[1]), slope.live, slope.live != nullptr};
  if (reverse.by_) by = sum_of(by, slope.settled());
  Adjoint inside{{}, adjoint.captures};
  inside.captures.add(adjoint.all);
  if (e->args[0]->reads) reach(adjoints, e->args[0], inside);
}

void Reverse::Pass::read() {
  Scatter scatter{.capture = e->bits, .index = {}, .value = nullptr, .loops = reverse.loops};
  scatter.value = sum_of(adjoint.captures.settled(), adjoint.all.settled());
  scatter.index.assign(e->arguments().begin(), e->arguments().end());
  std::vector<Expr> open = reverse.variables;
  // If the index does not use a loop's variable, the loop becomes a sum of the value.
  for (std::size_t i = open.size(); i-- > 0;) {
    const auto mentions = [&](const Expr& x) { return ir::mentions(x, open[i]); };
    if (std::any_of(scatter.index.begin(), scatter.index.end(), mentions)) continue;
    scatter.value = ir::sum(open[i], scatter.loops[i].count, scatter.value);
    scatter.loops.erase(scatter.loops.begin() + static_cast<std::ptrdiff_t>(i));
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // The remaining loops get binders above those of all sums. This comes last, since the sums made above also take
  // binders.
  std::uint32_t binder = scatter.value->binder;
  for (const Expr& x : scatter.index) binder = std::max(binder, x->binder);
  for (std::size_t i = open.size(); i-- > 0;) {
    scatter.loops[i].binder = ++binder;
    const auto name = [&](const Expr& x) { return ir::rename(x, open[i], ir::bound(binder)); };
    scatter.value = name(scatter.value);
    for (Expr& x : scatter.index) x = name(x);
  }
  reverse.into_.captures.push_back(std::move(scatter));
}

/// A sum that does not use the variable of the sum around it is derived outside, once, for all its terms together: sums
/// that contain each other twice would otherwise be derived 2^depth times.
void Reverse::Pass::hand_out() {
  const Expr& variable = reverse.variables.back();
  const std::uint32_t count = reverse.loops.back().count;
  const auto over_all = [&](const Flow& f) {
    if (!f.value) return Flow{};
    Expr live = f.live;
    if (live && ir::mentions(live, variable))
      live = ir::op(Op::Gt, ir::sum(variable, count, ir::op(Op::I32, live)), ir::integer(0));
    return Flow{ir::sum(variable, count, f.settled()), live, false};
  };
  reach(*around, e, {over_all(adjoint.all), over_all(adjoint.captures)});
}

void Reverse::Pass::sum() {
  if (around && !ir::mentions(e, reverse.variables.back())) return hand_out();
  const Expr variable = ir::fresh_bound();
  const Expr body = ir::rename(e->args[0], ir::bound(ir::sum_binder(*e)), variable);
  if (body->type != Type::F32) return;
  reverse.loops.push_back({0, ir::sum_count(*e)});
  reverse.variables.push_back(variable);
  Expr flows;
  reverse.run(body, adjoint, flows, &adjoints);
  reverse.loops.pop_back();
  reverse.variables.pop_back();
  if (flows) by = sum_of(by, ir::sum(variable, ir::sum_count(*e), flows));
}

}  // namespace

Derivative derive(const ir::Expr& e, std::optional<ir::Input> by) {
  Derivative derivative;
  Reverse reverse(by, derivative);
  Expr flows;
  reverse.run(e, {.all = {real(1), nullptr, false}, .captures = {}}, flows);
  if (by) derivative.by = flows ? flows : real(0);
  return derivative;
}

}  // namespace attune::compiler

// compiler/solve.cpp — solves a mask for one axis: the ranges between bounds in which it is true or false
#include "compiler/solve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "compiler/lower.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op, ir::Type;

/// A mask with more spaces than this along an axis is tested tile by tile instead.
constexpr std::size_t most_spaces = 8;
/// Expressions with more tree nodes are not solved.
constexpr std::uint32_t most_solved_nodes = 300;

class Solver {
 public:
  Solver(Input axis, Tile& tile) : axis_(axis), other_(other(axis)), tile_(tile), range_(coordinate_bounds()) {}

  Solved operator()(const Expr& mask) {
    ir::DigestMap<Solved> solved;
    for (const Expr& e : ir::in_order(std::span(&mask, 1), ir::SumBodies::Skip))
      if (e->type == Type::Bool) solved.emplace(e->digest, solve_node(e, solved));
    Solved out = solved.at(mask->digest);
    out.stops = std::move(stops_);
    return out;
  }

 private:
  Spaces everything(const Expr& at, std::string why) {
    stops_.push_back({at, std::move(why)});
    Space s;
    s.exact = false;
    return {s};
  }
  static Spaces any(Spaces a, const Spaces& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  Spaces all(const Expr& at, const Spaces& a, const Spaces& b) {
    if (a.size() * b.size() > most_spaces) return everything(at, "it falls into too many pieces");
    Spaces out;
    for (const Space& x : a)
      for (const Space& y : b) {
        Space s = x;
        for (const auto list : {&Space::from, &Space::to, &Space::tile_from, &Space::tile_to})
          (s.*list).insert((s.*list).end(), (y.*list).begin(), (y.*list).end());
        s.when = both(x.when, y.when);
        s.exact = x.exact && y.exact;
        out.push_back(std::move(s));
      }
    return out;
  }
  static Spaces where(const Expr& condition) {
    if (is(condition, false)) return {};
    Space s;
    s.when = condition;
    return {s};
  }

  Solved solve_node(const Expr& e, const ir::DigestMap<Solved>& solved) {
    const auto of = [&](std::size_t i) -> const Solved& { return solved.at(e->args[i]->digest); };
    if (is_fixed(e)) return {where(e), where(negated(e))};
    // If the first argument holds and `then` does, or it fails and `otherwise` does. One after another: reasons are
    // noted in this order, whichever compiler builds attune.
    const auto either = [&](const Spaces& then, const Spaces& otherwise) {
      const Spaces second = all(e, of(0).no, otherwise);
      return any(all(e, of(0).yes, then), second);
    };
    Solved s;
    if (e->op == Op::And || e->op == Op::Or) {
      s = {all(e, of(0).yes, of(1).yes), any(of(0).no, of(1).no)};
      if (e->op == Op::Or) s = {any(of(0).yes, of(1).yes), all(e, of(0).no, of(1).no)};
    } else if (e->op == Op::Not) {
      s = {of(0).no, of(0).yes};
    } else if (e->op == Op::Where) {
      s = {either(of(1).yes, of(2).yes), either(of(1).no, of(2).no)};
    } else if (ir::compares(e->op) && e->args[0]->type == Type::Bool) {
      s = {either(of(1).yes, of(1).no), either(of(1).no, of(1).yes)};
      if (e->op == Op::Ne) std::swap(s.yes, s.no);
    } else {
      s = solve_leaf(e);
    }
    if (s.yes.size() > most_spaces) s.yes = everything(e, "it falls into too many pieces");
    if (s.no.size() > most_spaces) s.no = everything(e, "it falls into too many pieces");
    return s;
  }

  static bool compares_ints(const Expr& e) { return ir::compares(e->op) && e->args[0]->type == Type::I32; }

  Solved solve_leaf(const Expr& e) {
    if (!ir::uses(e, axis_)) return solve_of_tile(e);
    if (compares_ints(e)) {
      if (const auto runs = equal_runs(e)) return *runs;
      return {compare(e, e->op, e->args[0], e->args[1]), compare(e, opposite(e->op), e->args[0], e->args[1])};
    }
    const std::string why = e->random ? "it is random" : e->op == Op::Read ? "it is data" : "it compares Floats";
    return {everything(e, why), everything(e, why)};
  }

  /// A condition on the tile's own axis: a bound on it if it can be solved, else a condition on the whole tile.
  Solved solve_of_tile(const Expr& e) {
    const auto kept = std::exchange(stops_, {});
    std::swap(axis_, other_);
    Solved s;
    if (compares_ints(e))
      s = {compare(e, e->op, e->args[0], e->args[1]), compare(e, opposite(e->op), e->args[0], e->args[1])};
    std::swap(axis_, other_);
    const bool solved = stops_.empty() && !(s.yes.empty() && s.no.empty());
    stops_ = kept;
    if (!solved) {
      const Can c = tile_.can(e);
      s = {where(c.hold), where(c.fail)};
      for (Spaces* list : {&s.yes, &s.no})
        for (Space& space : *list) space.exact = false;
      return s;
    }
    for (Spaces* list : {&s.yes, &s.no})
      for (Space& space : *list) {
        std::swap(space.from, space.tile_from);
        std::swap(space.to, space.tile_to);
      }
    return s;
  }

  static Op opposite(Op op) {
    switch (op) {
      case Op::Lt: return Op::Ge;
      case Op::Le: return Op::Gt;
      case Op::Gt: return Op::Le;
      case Op::Ge: return Op::Lt;
      case Op::Eq: return Op::Ne;
      default: return Op::Eq;
    }
  }

  /// doc[q] == doc[kv]: if the tensor is sorted, the run of equal elements around q.
  std::optional<Solved> equal_runs(const Expr& e) {
    const Expr &x = e->args[0], &y = e->args[1];
    if ((e->op != Op::Eq && e->op != Op::Ne) || x->op != Op::Read || y->op != Op::Read || x->bits != y->bits ||
        x->arity == 0)
      return std::nullopt;
    const std::size_t last = x->arity - 1u;
    for (std::size_t i = 0; i < last; ++i)
      if (!ir::same(x->args[i], y->args[i]) || !is_fixed(x->args[i])) return std::nullopt;
    const auto is_input = [](const Expr& a, Input which) {
      return a->op == Op::Input && a->bits == static_cast<std::uint32_t>(which);
    };
    const bool straight = is_input(x->args[last], Input::Q) && is_input(y->args[last], Input::KV);
    const bool turned = is_input(x->args[last], Input::KV) && is_input(y->args[last], Input::Q);
    if (!straight && !turned) return std::nullopt;
    std::vector<Expr> at(x->arguments().begin(), x->arguments().end() - 1);
    const Expr sorted = ir::read(tile_.summary(Summary::Of::Sorted, x->bits), Type::Bool, at);
    at.push_back(ir::input(other_));
    const Expr first = ir::read(tile_.summary(Summary::Of::RunFirst, x->bits), Type::I32, at);
    const Expr final = ir::read(tile_.summary(Summary::Of::RunLast, x->bits), Type::I32, at);
    Space inside, before, after, unsorted;
    inside.from = {first};
    inside.to = {final};
    before.to = {minus_one(first)};
    after.from = {ir::op(Op::Add, final, integer(1))};
    for (Space* s : {&inside, &before, &after}) s->when = sorted;
    unsorted.when = negated(sorted);
    unsorted.exact = false;
    Solved s{{inside, unsorted}, {before, after, unsorted}};
    if (e->op == Op::Ne) std::swap(s.yes, s.no);
    return s;
  }

  Spaces compare(const Expr& at, Op op, const Expr& x, const Expr& y) {
    const bool left = ir::uses(x, axis_), right = ir::uses(y, axis_);
    if (left && right) return everything(at, "both sides hold the axis");
    if (right) {
      const Op turned = op == Op::Lt   ? Op::Gt
                        : op == Op::Le ? Op::Ge
                        : op == Op::Gt ? Op::Lt
                        : op == Op::Ge ? Op::Le
                                       : op;
      return compare(at, turned, y, x);
    }
    for (const Expr& e : ir::in_order(std::span(&x, 1), ir::SumBodies::Skip))
      if (e->op == Op::Read && ir::uses(e, axis_)) return everything(at, "it is data");
    if (x->size > most_solved_nodes) return everything(at, "it is too large");
    const auto tamely = straight(x);
    if (!tamely) return everything(at, "its arithmetic may wrap around");
    Spaces solved = ordered(at, op, x, y);
    tame_.reset();
    if (is(*tamely, true)) return solved;
    // The solution holds only for tame values; otherwise the comparison may be anything.
    Space wild;
    wild.when = negated(*tamely);
    wild.exact = false;
    for (Space& s : solved) s.when = both(s.when, *tamely);
    return any(solved, {wild});
  }

  /// The condition on the whole tile under which no arithmetic in `x` that involves the axis wraps, and x is neither
  /// the least nor the greatest Int, so that bounds on x can move by one; null if no such condition is known. Other
  /// operands are assumed tame where ranges alone do not prove it; `tame_` then holds that assumption.
  std::optional<Expr> straight(const Expr& x) {
    tame_.reset();
    const auto solvable = [&](ir::Ranger& range) {
      const ir::Interval r = range(x);
      return r.lo > -0x1p31 && r.hi < 0x1p31 - 1 && never_wraps(x, range);
    };
    if (solvable(range_)) return truth(true);
    ir::Bounds bounds = coordinate_bounds();
    Expr condition = truth(true);
    for (const Expr& e : ir::in_order(std::span(&x, 1), ir::SumBodies::Skip)) {
      if (e->type != Type::I32 || !ir::uses(e, axis_)) continue;
      for (const Expr& aside : e->arguments()) {
        if (aside->type != Type::I32 || ir::uses(aside, axis_) || bounds.facts.contains(aside->digest)) continue;
        const ir::Interval r = range_(aside);
        if (r.lo >= -0x1p30 && r.hi <= 0x1p30) continue;
        const auto [ends, assumed, loose] = tile_.ends(aside);
        if (!ends) return std::nullopt;
        bounds.facts[aside->digest] = {-tame_limit, tame_limit, false};
        condition = both(condition, both(assumed, both(ir::op(Op::Ge, ends->least, integer(-tame_limit)),
                                                       ir::op(Op::Le, ends->most, integer(tame_limit)))));
      }
    }
    tame_.emplace(std::move(bounds));
    if (solvable(*tame_)) return condition;
    tame_.reset();
    return std::nullopt;
  }

  bool never_wraps(const Expr& x, ir::Ranger& range) const {
    for (const Expr& e : ir::in_order(std::span(&x, 1), ir::SumBodies::Skip)) {
      if (e->type != Type::I32 || !ir::uses(e, axis_) || e->arity == 0 || e->args[0]->type != Type::I32) continue;
      const ir::Interval a = range(e->args[0]), b = e->arity > 1 ? range(e->args[1]) : ir::Interval::point(0);
      const std::array products{a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};
      if (e->op == Op::Add && !fits(a.lo + b.lo, a.hi + b.hi)) return false;
      if (e->op == Op::Sub && !fits(a.lo - b.hi, a.hi - b.lo)) return false;
      if ((e->op == Op::Neg || e->op == Op::Abs) && !fits(-a.hi, -a.lo)) return false;
      if (e->op == Op::Mul && !fits(*std::min_element(products.begin(), products.end()),
                                    *std::max_element(products.begin(), products.end())))
        return false;
    }
    return true;
  }

  Expr within(const Expr& y, double low, double high) { return compiler::within(y, low, high, range_); }

  /// x op y, where x is neither the least nor the greatest Int.
  Spaces ordered(const Expr& at, Op op, const Expr& x, const Expr& y) {
    // If y is outside x's range, its distance makes no difference: clamp y to just outside the range, so that y - 1 and
    // y + 1 cannot wrap.
    const ir::Interval r = tame_ ? (*tame_)(x) : range_(x);
    if (r.empty()) return {};  // never tame: the caller handles values that are not tame
    const auto most = [&](bool strictly) {
      return bounded(at, x, strictly ? minus_one(within(y, r.lo, r.hi + 1)) : within(y, r.lo - 1, r.hi), true);
    };
    const auto least = [&](bool strictly) {
      const Expr more = strictly ? ir::op(Op::Add, within(y, r.lo - 1, r.hi), integer(1)) : within(y, r.lo, r.hi + 1);
      return bounded(at, x, more, false);
    };
    if (op == Op::Lt || op == Op::Le) return most(op == Op::Lt);
    if (op == Op::Gt || op == Op::Ge) return least(op == Op::Gt);
    const Spaces from = least(op != Op::Eq), to = most(op != Op::Eq);  // in this order, see solve_node()
    return op == Op::Eq ? all(at, to, from) : any(to, from);
  }

  /// x <= bound (from above) or x >= bound: solved for the axis, from the outside of x inwards. `bound` does not depend
  /// on the axis.
  Spaces bounded(const Expr& at, const Expr& written, const Expr& bound, bool above) {
    const Expr x = literal_last(written);
    const auto& a = x->args;
    if (x->op == Op::Input) {
      Space s;
      (above ? s.to : s.from).push_back(bound);
      return {s};
    }
    const bool in_first = x->arity >= 1 && ir::uses(a[0], axis_), in_second = x->arity >= 2 && ir::uses(a[1], axis_);
    if (x->arity == 2 && in_first && in_second && x->op != Op::Min && x->op != Op::Max)
      return everything(at, "the axis stands in it more than once");
    if (x->op == Op::Add || x->op == Op::Sub) {
      // a - kv <= bound becomes kv >= a - bound.
      const Expr& inner = in_first ? a[0] : a[1];
      const Expr& aside = in_first ? a[1] : a[0];
      const bool falls = x->op == Op::Sub && !in_first;
      const Expr leaf = tamed(aside);
      const auto rest = falls ? move(Op::Sub, leaf, bound) : move(x->op == Op::Add ? Op::Sub : Op::Add, bound, leaf);
      if (!rest) return everything(at, "its arithmetic may wrap around");
      return bounded(at, inner, narrowed(inner, *rest, above != falls), above != falls);
    }
    if (x->op == Op::Neg) {
      const auto rest = move(Op::Sub, integer(0), bound);
      return rest ? bounded(at, a[0], narrowed(a[0], *rest, !above), !above)
                  : everything(at, "its arithmetic may wrap around");
    }
    if (x->op == Op::Abs) {
      const auto mirrored = move(Op::Sub, integer(0), bound);
      if (!mirrored) return everything(at, "its arithmetic may wrap around");
      const Spaces right = bounded(at, a[0], narrowed(a[0], bound, above), above),
                   left = bounded(at, a[0], narrowed(a[0], *mirrored, !above), !above);
      return above ? all(at, right, left) : any(right, left);
    }
    if (x->op == Op::Min || x->op == Op::Max) {
      const Spaces l = side(at, a[0], bound, above), r = side(at, a[1], bound, above);
      return (x->op == Op::Min) == above ? any(l, r) : all(at, l, r);
    }
    if (x->op == Op::Clamp) {
      // min(max(x, low), high)
      const Spaces v = side(at, a[0], bound, above), low = side(at, a[1], bound, above),
                   high = side(at, a[2], bound, above);
      return above ? any(all(at, v, low), high) : all(at, any(v, low), high);
    }
    if (x->arity == 2 && in_first && ir::is_literal(a[1])) return scaled(at, x, bound, above);
    return everything(at, "no bound on the axis follows from it");
  }

  /// `bounded` where x is a product with a literal or a quotient by a literal.
  Spaces scaled(const Expr& at, const Expr& x, const Expr& bound, bool above) {
    const Expr& inner = x->args[0];
    const double by = ir::literal_value(*x->args[1]);
    const bool floors = x->op == Op::FloorDiv || x->op == Op::Shr || (x->op == Op::Div && range_(inner).lo >= 0);
    const double divisor = x->op == Op::Shr ? std::exp2(static_cast<std::int32_t>(by) & 31) : by;
    if (floors && divisor > 0 && divisor < 0x1p30) {
      const ir::Interval r = range_(bound);
      if (!fits(r.lo * divisor, r.hi * divisor + divisor - 1)) return everything(at, "its arithmetic may wrap around");
      const Expr times = ir::op(Op::Mul, bound, integer(divisor));
      const Expr limit = above ? ir::op(Op::Add, times, integer(divisor - 1)) : times;
      return bounded(at, inner, narrowed(inner, limit, above), above);
    }
    if (x->op == Op::Mul && by != 0 && by > -0x1p31) {
      // A negative factor reverses the bound: -2 * kv <= bound is kv >= -floor(bound / 2).
      const ir::Interval r = range_(bound);
      if (!fits(-r.hi, -r.lo)) return everything(at, "its arithmetic may wrap around");
      const auto floored = [&](const Expr& of) { return ir::op(Op::FloorDiv, of, integer(std::fabs(by))); };
      const auto minus = [](const Expr& of) { return ir::op(Op::Neg, of); };
      const Expr limit = above ? (by > 0 ? floored(bound) : minus(floored(bound)))
                               : (by > 0 ? minus(floored(minus(bound))) : floored(minus(bound)));
      return bounded(at, inner, narrowed(inner, limit, above == (by > 0)), above == (by > 0));
    }
    return everything(at, "no bound on the axis follows from it");
  }

  /// l + r or l - r; nothing where it may wrap.
  std::optional<Expr> move(Op op, const Expr& l, const Expr& r) {
    const ir::Interval rl = range_(l), rr = range_(r);
    const double low = op == Op::Add ? rl.lo + rr.lo : rl.lo - rr.hi,
                 high = op == Op::Add ? rl.hi + rr.hi : rl.hi - rr.lo;
    if (fits(low, high)) return ir::op(op, l, r);
    return std::nullopt;
  }

  /// An argument of min, max or clamp; it need not depend on the axis.
  Spaces side(const Expr& at, const Expr& x, const Expr& bound, bool above) {
    if (ir::uses(x, axis_)) return bounded(at, x, narrowed(x, bound, above), above);
    const Expr holds = ir::op(above ? Op::Le : Op::Ge, x, bound);
    if (is_fixed(holds)) return where(holds);
    const Can c = tile_.can(holds);
    Spaces s = where(c.hold);
    for (Space& space : s) space.exact = false;
    return s;
  }

  /// The same bound, clamped to at most one beyond x's range, so that arithmetic with it stays small.
  Expr narrowed(const Expr& x, const Expr& bound, bool above) {
    const ir::Interval r = range_(x);
    return within(bound, above ? std::max(r.lo - 1, -0x1p31) : r.lo, above ? r.hi : std::min(r.hi + 1, 0x1p31 - 1));
  }

  /// The other operand of a sum that is known not to wrap. The operand needs no separate condition, since the whole
  /// comparison already carries the assumption that its parts are tame. The clamp changes nothing; it only states the
  /// range.
  Expr tamed(const Expr& e) {
    const ir::Interval r = tame_ ? (*tame_)(e) : range_(e);
    return within(e, r.lo, r.hi);
  }

  Input axis_, other_;
  Tile& tile_;
  ir::Ranger range_;                ///< for the mask's expressions
  std::optional<ir::Ranger> tame_;  ///< set while solving a comparison that is assumed tame
  std::vector<Stop> stops_;
};

}  // namespace

Solved solve(const Expr& mask, Input axis, Tile& tile) { return Solver(axis, tile)(mask); }

Expr within(const Expr& y, double low, double high, ir::Ranger& range) {
  const ir::Interval r = range(y);
  if (r.lo >= low && r.hi <= high) return y;
  return ir::op(Op::Clamp, y, integer(low), integer(high));
}

}  // namespace attune::compiler

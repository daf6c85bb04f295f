// compiler/cover.cpp — a mask over a tile, in two ways: by symbolic intervals, and solved for one axis
//
// By intervals every Bool of the mask is asked twice, "can it be true in the tile?" and "can it be false?"; of an Int
// the least and the greatest value are asked. Solved for an axis, a comparison becomes a bound on it, a conjunction the
// space between bounds, a disjunction a list of such spaces; over the tile of the other axis each bound takes its most
// generous value. Both are expressions: the host evaluates them, kernels compile them.
//
// Arithmetic of the user wraps, ours must not. A bound is moved across + - only where ranges prove that nothing wraps;
// for values without a range (parameters, captured lengths) the proof assumes they are tame, within ±2^29, and the
// result carries that assumption as a condition.
#include "compiler/cover.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "compiler/lower.h"
#include "compiler/simplify.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op, ir::Type;

constexpr double tame_limit = 0x1p29;
/// A mask with more spaces than this along an axis is looked at tile by tile instead.
constexpr std::size_t most_spaces = 8;

Expr integer(double value) { return ir::integer(static_cast<std::int32_t>(value)); }
Expr truth(bool value) { return ir::boolean(value); }
bool is(const Expr& e, bool value) { return ir::is_literal(e) && (e->bits != 0) == value; }

Expr both(const Expr& a, const Expr& b) {
  return is(a, true) ? b : is(b, true) || is(a, false) ? a : is(b, false) ? b : ir::op(Op::And, a, b);
}
Expr either(const Expr& a, const Expr& b) {
  return is(a, false) ? b : is(b, false) || is(a, true) ? a : is(b, true) ? b : ir::op(Op::Or, a, b);
}
Expr negated(const Expr& a) { return ir::is_literal(a) ? truth(!a->bits) : ir::op(Op::Not, a); }
Expr minus_one(const Expr& a) { return ir::op(Op::Sub, a, integer(1)); }

/// The least and the greatest value of an Int over the tile, both reached by some pair unless widened.
struct Ends {
  Expr least, most;
};

/// Can a Bool be true in the tile? Can it be false?
struct Can {
  Expr hold, fail;
};

/// The space between bounds: from below, from above, on the axis solved for and on the tile's own axis.
struct Space {
  std::vector<Expr> from, to;            ///< inclusive, of the axis
  std::vector<Expr> tile_from, tile_to;  ///< inclusive, of the tile's axis
  Expr when = truth(true);               ///< free of both axes, or already asked of the whole tile
  bool exact = true;
};
using Spaces = std::vector<Space>;

/// A Bool, and its negation, as spaces along the axis.
struct Solved {
  Spaces yes, no;
};

class Analysis {
 public:
  Analysis(const ir::Signature& signature, std::vector<Summary>& summaries)
      : signature_(signature), summaries_(summaries), range_(coordinate_bounds()) {}

  /// The tile, inclusive.
  void tile(Ends q, Ends kv) {
    q_ = std::move(q);
    kv_ = std::move(kv);
    ends_.clear();
    can_.clear();
  }

  Can can(const Expr& mask) {
    if (const auto found = can_.find(mask->digest); found != can_.end()) return found->second;
    for (const Expr& e : ir::in_order(std::span(&mask, 1), ir::SumBodies::Skip))
      if (e->type == Type::Bool && !can_.contains(e->digest)) can_.emplace(e->digest, can_node(e));
    return can_.at(mask->digest);
  }

  Bands solve(const Expr& mask, Input axis) {
    axis_ = axis;
    other_ = axis == Input::KV ? Input::Q : Input::KV;
    stops_.clear();
    ir::DigestMap<Solved> solved;
    for (const Expr& e : ir::in_order(std::span(&mask, 1), ir::SumBodies::Skip))
      if (e->type == Type::Bool) solved.emplace(e->digest, solve_node(e, solved));
    Bands bands;
    for (const Space& s : solved.at(mask->digest).yes) add(bands.kept, s);
    for (const Space& s : solved.at(mask->digest).no) add(bands.gone, s);
    bands.stops = std::move(stops_);
    return bands;
  }

 private:
  // ---- ends of Ints
  // --------------------------------------------------------------------------------------------------

  static bool fixed(const Expr& e) { return !ir::uses(e, Input::Q) && !ir::uses(e, Input::KV) && !e->random; }

  /// Within i32 for sure, with what is assumed tame?
  bool fits(double low, double high) const { return low >= -0x1p31 && high <= 0x1p31 - 1; }

  /// A value that arithmetic may be done with: its range, after assuming it tame if it has none. The assumption is
  /// noted in `assumed_` and becomes part of the result's condition.
  std::optional<ir::Interval> operand(const Expr& e) {
    const ir::Interval r = range_(e);
    if (r.hi - r.lo <= 0x1p31) return r;
    const auto ends = ends_of(e);
    if (!ends) return std::nullopt;
    const Expr low = ir::op(Op::Ge, ends->least, integer(-tame_limit));
    const Expr high = ir::op(Op::Le, ends->most, integer(tame_limit));
    assumed_ = both(assumed_, both(low, high));
    return ir::Interval{-tame_limit, tame_limit, false};
  }

  std::optional<Ends> ends_of(const Expr& e) {
    if (fixed(e)) return Ends{e, e};
    if (const auto found = ends_.find(e->digest); found != ends_.end()) {
      assumed_ = both(assumed_, found->second.assumed);
      loose_ |= found->second.loose;
      return found->second.ends;
    }
    const Expr before = std::exchange(assumed_, truth(true));
    const bool loose = std::exchange(loose_, false);
    std::optional<Ends> ends = e->depth > 200 ? std::nullopt : ends_node(e);
    if (!ends) {
      // What is known of it anywhere, if that is less than everything.
      assumed_ = truth(true);
      loose_ = true;
      const ir::Interval r = range_(e);
      if (r.lo > -0x1p31 || r.hi < 0x1p31 - 1) ends = Ends{integer(r.lo), integer(r.hi)};
    }
    ends_.emplace(e->digest, Known{ends, assumed_, loose_});
    assumed_ = both(before, assumed_);
    loose_ |= loose;
    return ends;
  }

  std::optional<Ends> ends_node(const Expr& e) {
    const auto& a = e->args;
    if (e->op == Op::Input) {
      const auto which = static_cast<Input>(e->bits);
      return which == Input::Q ? q_ : which == Input::KV ? kv_ : Ends{e, e};
    }
    if (e->op == Op::Read) return ends_of_read(e);
    if (e->op == Op::Where) {
      const auto x = ends_of(a[1]), y = ends_of(a[2]);
      if (!x || !y) return std::nullopt;
      const Can c = can(a[0]);
      const auto pick = [&](const Expr& left, const Expr& right, Op worst) {
        return ir::op(Op::Where, negated(c.fail), left,
                      ir::op(Op::Where, negated(c.hold), right, ir::op(worst, left, right)));
      };
      return Ends{pick(x->least, y->least, Op::Min), pick(x->most, y->most, Op::Max)};
    }
    if (e->op == Op::I32 && a[0]->type == Type::Bool) {
      const Can c = can(a[0]);
      return Ends{ir::op(Op::Where, c.fail, integer(0), integer(1)), ir::op(Op::Where, c.hold, integer(1), integer(0))};
    }
    if (e->arity == 1 && a[0]->type == Type::I32) return ends_of_one(e);
    if (e->arity == 2 && a[0]->type == Type::I32) return ends_of_two(e);
    if (e->op == Op::Clamp) {
      const auto x = ends_of(a[0]), low = ends_of(a[1]), high = ends_of(a[2]);
      if (!x || !low || !high) return std::nullopt;
      return Ends{ir::op(Op::Clamp, x->least, low->least, high->least),
                  ir::op(Op::Clamp, x->most, low->most, high->most)};
    }
    return std::nullopt;
  }

  std::optional<Ends> ends_of_one(const Expr& e) {
    const auto x = ends_of(e->args[0]);
    const auto r = operand(e->args[0]);
    if (!x || !r) return std::nullopt;
    if (e->op == Op::BitNot) return Ends{ir::op(Op::BitNot, x->most), ir::op(Op::BitNot, x->least)};
    if (!fits(-r->hi, -r->lo)) return std::nullopt;
    if (e->op == Op::Neg) return Ends{ir::op(Op::Neg, x->most), ir::op(Op::Neg, x->least)};
    if (e->op != Op::Abs) return std::nullopt;
    // |x| is least at 0 if the tile reaches it, else at the end nearer to 0.
    const Expr nearer = ir::op(Op::Max, x->least, ir::op(Op::Neg, x->most));
    return Ends{ir::op(Op::Max, nearer, integer(0)), ir::op(Op::Max, ir::op(Op::Neg, x->least), x->most)};
  }

  std::optional<Ends> ends_of_two(const Expr& e) {
    const auto x = ends_of(e->args[0]), y = ends_of(e->args[1]);
    if (!x || !y) return std::nullopt;
    if (e->op == Op::Min || e->op == Op::Max)
      return Ends{ir::op(e->op, x->least, y->least), ir::op(e->op, x->most, y->most)};
    const auto rx = operand(e->args[0]), ry = operand(e->args[1]);
    if (!rx || !ry) return std::nullopt;
    if (e->op == Op::Add && fits(rx->lo + ry->lo, rx->hi + ry->hi))
      return Ends{ir::op(Op::Add, x->least, y->least), ir::op(Op::Add, x->most, y->most)};
    if (e->op == Op::Sub && fits(rx->lo - ry->hi, rx->hi - ry->lo))
      return Ends{ir::op(Op::Sub, x->least, y->most), ir::op(Op::Sub, x->most, y->least)};
    if (!ir::is_literal(e->args[1])) return std::nullopt;
    const double by = ir::literal_value(*e->args[1]);
    const auto rising = [&] { return Ends{ir::op(e->op, x->least, e->args[1]), ir::op(e->op, x->most, e->args[1])}; };
    if (e->op == Op::Mul && fits(std::min(rx->lo * by, rx->hi * by), std::max(rx->lo * by, rx->hi * by))) {
      if (by >= 0) return rising();
      return Ends{ir::op(Op::Mul, x->most, e->args[1]), ir::op(Op::Mul, x->least, e->args[1])};
    }
    if ((e->op == Op::Div || e->op == Op::FloorDiv) && by > 0) return rising();
    if (e->op == Op::Shr) return rising();
    const bool low_bits = e->op == Op::BitAnd && by >= 0 && std::exp2(std::round(std::log2(by + 1))) == by + 1;
    if ((e->op == Op::Rem && by > 0 && rx->lo >= 0) || (e->op == Op::FloorMod && by > 0) || (low_bits && rx->lo >= 0)) {
      // Within one period the remainder rises with x; across its end it takes every value, or nearly.
      const Expr period = low_bits ? integer(by + 1) : e->args[1];
      const Expr one = ir::op(Op::Eq, ir::op(Op::FloorDiv, x->least, period), ir::op(Op::FloorDiv, x->most, period));
      return Ends{ir::op(Op::Where, one, ir::op(Op::FloorMod, x->least, period), integer(0)),
                  ir::op(Op::Where, one, ir::op(Op::FloorMod, x->most, period), minus_one(period))};
    }
    return std::nullopt;
  }

  std::uint32_t summary(Summary::Of of, std::uint32_t capture) {
    const Summary wanted{of, capture};
    const auto found = std::find(summaries_.begin(), summaries_.end(), wanted);
    const auto index = static_cast<std::size_t>(found - summaries_.begin());
    if (found == summaries_.end()) summaries_.push_back(wanted);
    return static_cast<std::uint32_t>(signature_.captures.size() + index);
  }

  std::optional<Ends> ends_of_read(const Expr& e) {
    std::vector<Expr> index;
    for (const Expr& a : e->arguments()) {
      const auto ends = ends_of(a);
      if (!ends) return std::nullopt;
      index.push_back(ends->least);
      index.push_back(ends->most);
    }
    return Ends{ir::read(summary(Summary::Of::Least, e->bits), e->type, index),
                ir::read(summary(Summary::Of::Greatest, e->bits), e->type, index)};
  }

  // ---- what Bools can be
  // ---------------------------------------------------------------------------------------------

  Can can_node(const Expr& e) {
    const auto of = [&](std::size_t i) { return can(e->args[i]); };
    if (fixed(e)) return {e, negated(e)};
    const Can anything{truth(true), truth(true)};
    if (e->op == Op::And) {
      const Can a = of(0), b = of(1);
      return {both(a.hold, b.hold), either(a.fail, b.fail)};
    }
    if (e->op == Op::Or) {
      const Can a = of(0), b = of(1);
      return {either(a.hold, b.hold), both(a.fail, b.fail)};
    }
    if (e->op == Op::Not) {
      const Can a = of(0);
      return {a.fail, a.hold};
    }
    if (e->op == Op::Where) {
      const Can c = of(0), a = of(1), b = of(2);
      return {either(both(c.hold, a.hold), both(c.fail, b.hold)), either(both(c.hold, a.fail), both(c.fail, b.fail))};
    }
    if (e->op == Op::Read) {
      const auto ends = ends_of_read(e);
      return ends ? Can{ends->most, negated(ends->least)} : anything;
    }
    if (e->args[0]->type == Type::Bool && (e->op == Op::Eq || e->op == Op::Ne)) {
      const Can a = of(0), b = of(1);
      const Expr equal = either(both(a.hold, b.hold), both(a.fail, b.fail));
      const Expr other = either(both(a.hold, b.fail), both(a.fail, b.hold));
      return e->op == Op::Eq ? Can{equal, other} : Can{other, equal};
    }
    if (e->args[0]->type != Type::I32) return anything;
    const Expr before = std::exchange(assumed_, truth(true));
    const auto x = ends_of(e->args[0]), y = ends_of(e->args[1]);
    const Expr wild = negated(std::exchange(assumed_, before));
    if (!x || !y) return anything;
    const Can tamely = compared(e->op, *x, *y);
    return {either(wild, tamely.hold), either(wild, tamely.fail)};
  }

  static Can compared(Op op, const Ends& x, const Ends& y) {
    const auto can_be = [](Op order, const Expr& a, const Expr& b) { return ir::op(order, a, b); };
    switch (op) {
      case Op::Lt: return {can_be(Op::Lt, x.least, y.most), can_be(Op::Le, y.least, x.most)};
      case Op::Le: return {can_be(Op::Le, x.least, y.most), can_be(Op::Lt, y.least, x.most)};
      case Op::Gt: return compared(Op::Lt, y, x);
      case Op::Ge: return compared(Op::Le, y, x);
      case Op::Eq: {
        const Expr meet = both(can_be(Op::Le, x.least, y.most), can_be(Op::Le, y.least, x.most));
        const Expr differ = either(can_be(Op::Lt, x.least, y.most), can_be(Op::Lt, y.least, x.most));
        return {meet, differ};
      }
      default: break;
    }
    const Can equal = compared(Op::Eq, x, y);
    return {equal.fail, equal.hold};
  }

  // ---- solved for an axis
  // --------------------------------------------------------------------------------------------

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
        const auto join = [](std::vector<Expr>& to, const std::vector<Expr>& more) {
          to.insert(to.end(), more.begin(), more.end());
        };
        join(s.from, y.from);
        join(s.to, y.to);
        join(s.tile_from, y.tile_from);
        join(s.tile_to, y.tile_to);
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
    if (fixed(e)) return {where(e), where(negated(e))};
    Solved s;
    if (e->op == Op::And || e->op == Op::Or) {
      s = {all(e, of(0).yes, of(1).yes), any(of(0).no, of(1).no)};
      if (e->op == Op::Or) s = {any(of(0).yes, of(1).yes), all(e, of(0).no, of(1).no)};
    } else if (e->op == Op::Not) {
      s = {of(0).no, of(0).yes};
    } else if (e->op == Op::Where) {
      s = {any(all(e, of(0).yes, of(1).yes), all(e, of(0).no, of(2).yes)),
           any(all(e, of(0).yes, of(1).no), all(e, of(0).no, of(2).no))};
    } else if (e->arity == 2 && e->args[0]->type == Type::Bool) {
      s = {any(all(e, of(0).yes, of(1).yes), all(e, of(0).no, of(1).no)),
           any(all(e, of(0).yes, of(1).no), all(e, of(0).no, of(1).yes))};
      if (e->op == Op::Ne) std::swap(s.yes, s.no);
    } else {
      s = solve_leaf(e);
    }
    if (s.yes.size() > most_spaces) s.yes = everything(e, "it falls into too many pieces");
    if (s.no.size() > most_spaces) s.no = everything(e, "it falls into too many pieces");
    return s;
  }

  static bool compares_ints(const Expr& e) {
    return e->op != Op::Read && e->arity == 2 && e->args[0]->type == Type::I32;
  }

  Solved solve_leaf(const Expr& e) {
    if (!ir::uses(e, axis_)) return solve_of_tile(e);
    if (compares_ints(e)) {
      if (const auto runs = equal_runs(e)) return *runs;
      return {compare(e, e->op, e->args[0], e->args[1]), compare(e, opposite(e->op), e->args[0], e->args[1])};
    }
    const std::string why = e->random ? "it is random" : e->op == Op::Read ? "it is data" : "it compares Floats";
    return {everything(e, why), everything(e, why)};
  }

  /// A condition on the tile's own axis: a bound on it if it can be solved, else asked of the whole tile.
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
      const Can c = can(e);
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

  /// doc[q] == doc[kv]: where the tensor is sorted, the run of equal elements around q.
  std::optional<Solved> equal_runs(const Expr& e) {
    const Expr &x = e->args[0], &y = e->args[1];
    if ((e->op != Op::Eq && e->op != Op::Ne) || x->op != Op::Read || y->op != Op::Read || x->bits != y->bits ||
        x->arity == 0)
      return std::nullopt;
    const std::size_t last = x->arity - 1u;
    for (std::size_t i = 0; i < last; ++i)
      if (!ir::same(x->args[i], y->args[i]) || !fixed(x->args[i])) return std::nullopt;
    const auto is_input = [](const Expr& a, Input which) {
      return a->op == Op::Input && a->bits == static_cast<std::uint32_t>(which);
    };
    const bool straight = is_input(x->args[last], Input::Q) && is_input(y->args[last], Input::KV);
    const bool turned = is_input(x->args[last], Input::KV) && is_input(y->args[last], Input::Q);
    if (!straight && !turned) return std::nullopt;
    std::vector<Expr> at(x->arguments().begin(), x->arguments().end() - 1);
    const Expr sorted = ir::read(summary(Summary::Of::Sorted, x->bits), Type::Bool, at);
    at.push_back(ir::input(other_));
    const Expr first = ir::read(summary(Summary::Of::RunFirst, x->bits), Type::I32, at);
    const Expr final = ir::read(summary(Summary::Of::RunLast, x->bits), Type::I32, at);
    Space inside, before, behind, unsorted;
    inside.from = {first};
    inside.to = {final};
    before.to = {minus_one(first)};
    behind.from = {ir::op(Op::Add, final, integer(1))};
    for (Space* s : {&inside, &before, &behind}) s->when = sorted;
    unsorted.when = negated(sorted);
    unsorted.exact = false;
    Solved s{{inside, unsorted}, {before, behind, unsorted}};
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
    // Beyond what x can be, y makes no difference: within, y - 1 and y + 1 cannot wrap.
    const ir::Interval r = range_(x);
    const Expr bound = within(y, std::max(r.lo - 1, -0x1p31 + 1), std::min(r.hi + 1, 0x1p31 - 2));
    if (r.lo <= -0x1p31 || r.hi >= 0x1p31 - 1) {
      const auto of_x = operand_along(x);
      if (!of_x) return everything(at, "its arithmetic may wrap around");
      // Only a comparison of tame values is solved; the others may be anything.
      Spaces tamely = ordered(at, op, x, bound);
      Space wild;
      wild.when = negated(*of_x);
      wild.exact = false;
      for (Space& s : tamely) s.when = both(s.when, *of_x);
      return is(wild.when, false) ? tamely : any(tamely, {wild});
    }
    return ordered(at, op, x, bound);
  }

  /// The condition under which nothing in `x` wraps, if assuming its leaves tame is enough for that.
  std::optional<Expr> operand_along(const Expr& x) {
    ir::Bounds bounds = coordinate_bounds();
    Expr condition = truth(true);
    for (const Expr& e : ir::in_order(std::span(&x, 1), ir::SumBodies::Skip)) {
      if (e->type != Type::I32 || (e->op != Op::Param && e->op != Op::Read)) continue;
      if (!fixed(e)) return std::nullopt;
      bounds.facts[e->digest] = {-tame_limit, tame_limit, false};
      condition = both(condition,
                       both(ir::op(Op::Ge, e, integer(-tame_limit)), ir::op(Op::Le, e, integer(tame_limit))));
    }
    const ir::Interval r = ir::range(x, bounds);
    if (r.lo <= -0x1p31 || r.hi >= 0x1p31 - 1) return std::nullopt;
    return condition;
  }

  Expr within(const Expr& y, double low, double high) {
    const ir::Interval r = range_(y);
    if (r.lo >= low && r.hi <= high) return y;
    return ir::op(Op::Clamp, y, integer(low), integer(high));
  }

  Spaces ordered(const Expr& at, Op op, const Expr& x, const Expr& bound) {
    const Expr less = minus_one(bound), more = ir::op(Op::Add, bound, integer(1));
    switch (op) {
      case Op::Lt: return bounded(at, x, less, true);
      case Op::Le: return bounded(at, x, bound, true);
      case Op::Gt: return bounded(at, x, more, false);
      case Op::Ge: return bounded(at, x, bound, false);
      case Op::Eq: return all(at, bounded(at, x, bound, true), bounded(at, x, bound, false));
      default: return any(bounded(at, x, less, true), bounded(at, x, more, false));
    }
  }

  /// x <= bound (from above) or x >= bound: solved for the axis, from the outside of x inwards. `bound` is free of it.
  Spaces bounded(const Expr& at, const Expr& x, const Expr& bound, bool above) {
    const auto& a = x->args;
    if (x->op == Op::Input) {
      Space s;
      (above ? s.to : s.from).push_back(bound);
      return {s};
    }
    const auto move = [&](Op op, const Expr& l, const Expr& r) -> std::optional<Expr> {
      const ir::Interval rl = range_(l), rr = range_(r);
      const double low = op == Op::Add ? rl.lo + rr.lo : rl.lo - rr.hi,
                   high = op == Op::Add ? rl.hi + rr.hi : rl.hi - rr.lo;
      if (fits(low, high)) return ir::op(op, l, r);
      return std::nullopt;
    };
    const bool in_first = x->arity >= 1 && ir::uses(a[0], axis_), in_second = x->arity >= 2 && ir::uses(a[1], axis_);
    if (x->arity == 2 && in_first && in_second && x->op != Op::Min && x->op != Op::Max)
      return everything(at, "the axis stands in it more than once");
    if (x->op == Op::Add || x->op == Op::Sub) {
      // Of a - kv <= bound the other side is kv >= a - bound.
      const Expr& inner = in_first ? a[0] : a[1];
      const Expr& aside = in_first ? a[1] : a[0];
      const bool falls = x->op == Op::Sub && !in_first;
      const Expr leaf = tamed(aside);
      const auto rest = falls ? move(Op::Sub, leaf, bound) : move(x->op == Op::Add ? Op::Sub : Op::Add, bound, leaf);
      if (!rest) return everything(at, "its arithmetic may wrap around");
      return bounded(at, inner, narrowed(inner, *rest), above != falls);
    }
    if (x->op == Op::Neg) {
      const auto rest = move(Op::Sub, integer(0), bound);
      return rest ? bounded(at, a[0], narrowed(a[0], *rest), !above) : everything(at, "its arithmetic may wrap around");
    }
    if (x->op == Op::Abs) {
      const auto mirrored = move(Op::Sub, integer(0), bound);
      if (!mirrored) return everything(at, "its arithmetic may wrap around");
      const Spaces right = bounded(at, a[0], narrowed(a[0], bound), above),
                   left = bounded(at, a[0], narrowed(a[0], *mirrored), !above);
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
    if (x->arity == 2 && in_first && ir::is_literal(a[1])) {
      const double by = ir::literal_value(*a[1]);
      const bool floors = x->op == Op::FloorDiv || x->op == Op::Shr || (x->op == Op::Div && range_(a[0]).lo >= 0);
      const double divisor = x->op == Op::Shr ? std::exp2(std::fmod(by, 32)) : by;
      if (floors && divisor > 0 && divisor < 0x1p30) {
        const ir::Interval r = range_(bound);
        if (!fits(r.lo * divisor, r.hi * divisor + divisor - 1))
          return everything(at, "its arithmetic may wrap around");
        const Expr scaled = ir::op(Op::Mul, bound, integer(divisor));
        return bounded(at, a[0], narrowed(a[0], above ? ir::op(Op::Add, scaled, integer(divisor - 1)) : scaled), above);
      }
      if (x->op == Op::Mul && by > 0) {
        const Expr least = ir::op(Op::Neg, ir::op(Op::FloorDiv, ir::op(Op::Neg, bound), a[1]));
        return bounded(at, a[0], narrowed(a[0], above ? ir::op(Op::FloorDiv, bound, a[1]) : least), above);
      }
    }
    return everything(at, "no bound on the axis follows from it");
  }

  /// A part of min, max or clamp, with or without the axis.
  Spaces side(const Expr& at, const Expr& x, const Expr& bound, bool above) {
    if (ir::uses(x, axis_)) return bounded(at, x, narrowed(x, bound), above);
    const Expr holds = ir::op(above ? Op::Le : Op::Ge, x, bound);
    if (fixed(holds)) return where(holds);
    const Can c = can(holds);
    Spaces s = where(c.hold);
    for (Space& space : s) space.exact = false;
    return s;
  }

  /// A bound no further out than one beyond what x can be: the same bound, and arithmetic with it stays small.
  Expr narrowed(const Expr& x, const Expr& bound) {
    const ir::Interval r = range_(x);
    return within(bound, std::max(r.lo - 1, -0x1p31), std::min(r.hi + 1, 0x1p31 - 1));
  }

  /// A value beside the axis in a sum that is known not to wrap: no condition needed, for the comparison as a whole
  /// carries the tameness of its leaves. Its range is made known by a clamp that changes nothing then.
  Expr tamed(const Expr& e) {
    const ir::Interval r = range_(e);
    if (r.lo >= -0x1p30 && r.hi <= 0x1p30) return e;
    return ir::op(Op::Clamp, e, integer(-0x1p30), integer(0x1p30));
  }

  // ---- from spaces to bands
  // ------------------------------------------------------------------------------------------

  /// Rises, falls or stays the same along the tile's axis?
  enum class Way : std::uint8_t { Same, Rises, Falls, Unknown };
  Way way(const Expr& e) const {
    if (!ir::uses(e, other_)) return Way::Same;
    if (e->op == Op::Input) return Way::Rises;
    const auto turn = [](Way w) { return w == Way::Rises ? Way::Falls : w == Way::Falls ? Way::Rises : w; };
    const auto meet = [](Way a, Way b) { return a == Way::Same ? b : b == Way::Same || a == b ? a : Way::Unknown; };
    const auto& a = e->args;
    if (e->op == Op::Add || e->op == Op::Min || e->op == Op::Max) return meet(way(a[0]), way(a[1]));
    if (e->op == Op::Sub) return meet(way(a[0]), turn(way(a[1])));
    if (e->op == Op::Neg) return turn(way(a[0]));
    if (e->op == Op::Clamp) return meet(way(a[0]), meet(way(a[1]), way(a[2])));
    const bool steady = (e->op == Op::Div || e->op == Op::FloorDiv || e->op == Op::Mul) && ir::is_literal(a[1]) &&
                        ir::literal_value(*a[1]) > 0;
    if (steady || e->op == Op::Shr) return way(a[0]);
    // Runs of a sorted tensor, by construction.
    if (e->op == Op::Read && e->bits >= signature_.captures.size()) return way(a[e->arity - 1u]);
    return Way::Unknown;
  }

  /// The ends of a bound over the tile's axis narrowed by the space's own bounds on it.
  std::optional<Ends> over(const Expr& e) {
    if (e->op == Op::Read && e->bits >= signature_.captures.size()) {
      // RunFirst and RunLast rise with the position.
      std::vector<Expr> least(e->arguments().begin(), e->arguments().end()), most = least;
      const Ends& tile = other_ == Input::Q ? q_ : kv_;
      least.back() = tile.least;
      most.back() = tile.most;
      return Ends{ir::read(e->bits, e->type, least), ir::read(e->bits, e->type, most)};
    }
    if ((e->op == Op::Add || e->op == Op::Sub) && ir::is_literal(e->args[1])) {
      const auto inner = over(e->args[0]);
      if (inner) return Ends{ir::op(e->op, inner->least, e->args[1]), ir::op(e->op, inner->most, e->args[1])};
    }
    return ends_of(e);
  }

  void add(std::vector<Band>& bands, const Space& space) {
    const Ends q = q_, kv = kv_;
    Ends& tile = other_ == Input::Q ? q_ : kv_;
    Expr when = space.when;
    for (const Expr& e : space.tile_from) tile.least = ir::op(Op::Max, tile.least, e);
    for (const Expr& e : space.tile_to) tile.most = ir::op(Op::Min, tile.most, e);
    if (!space.tile_from.empty() || !space.tile_to.empty()) when = both(when, ir::op(Op::Le, tile.least, tile.most));
    ends_.clear();
    can_.clear();
    assumed_ = truth(true);
    loose_ = false;
    bool exact = space.exact, rises = true, falls = true;
    Expr begin = integer(0), end = ir::input(axis_ == Input::KV ? Input::KVLen : Input::QLen);
    if (axis_ == Input::Q) end = ir::input(Input::QEnd);  // queries may start at an offset: the caller gives the axis
    if (axis_ == Input::Q) begin = ir::input(Input::QBegin);
    const auto bound = [&](const Expr& e, bool above) {
      const auto ends = over(e);
      const Way w = way(e);
      rises &= w == Way::Same || w == Way::Rises;
      falls &= w == Way::Same || w == Way::Falls;
      if (!ends) {
        exact = false;
        return;
      }
      if (above)
        end = ir::op(Op::Min, end, ir::op(Op::Add, within(ends->most, -0x1p30 - 1, 0x1p30 + 1), integer(1)));
      else
        begin = ir::op(Op::Max, begin, ends->least);
    };
    for (const Expr& e : space.from) bound(e, false);
    for (const Expr& e : space.to) bound(e, true);
    exact &= !loose_ && is(assumed_, true);
    // A bound that is no bound where a value is not tame: then everything is within.
    const Expr tamely = std::exchange(assumed_, truth(true));
    if (!is(tamely, true)) {
      const Band wide{axis_ == Input::Q ? ir::input(Input::QBegin) : integer(0),
                      axis_ == Input::Q ? ir::input(Input::QEnd) : ir::input(Input::KVLen), false};
      begin = ir::op(Op::Where, tamely, begin, wide.begin);
      end = ir::op(Op::Where, tamely, end, wide.end);
    }
    if (!is(when, true)) end = ir::op(Op::Where, when, end, begin);
    q_ = q;
    kv_ = kv;
    ends_.clear();
    can_.clear();
    const auto tidy = [&](const Expr& e) { return simplify(e, cover_bounds()); };
    Band band{tidy(begin), tidy(end), exact && (rises || falls)};
    if (ir::same(band.begin, band.end)) return;
    bands.push_back(std::move(band));
  }

 public:
  static ir::Bounds cover_bounds() {
    ir::Bounds bounds = coordinate_bounds();
    for (const Input which : {Input::QBegin, Input::QEnd, Input::KVBegin, Input::KVEnd})
      bounds[which] = {0, static_cast<double>(max_length), false};
    return bounds;
  }

 private:
  struct Known {
    std::optional<Ends> ends;
    Expr assumed;
    bool loose;  ///< the ends may lie further out than any value
  };

  const ir::Signature& signature_;
  std::vector<Summary>& summaries_;
  ir::Ranger range_;
  Ends q_, kv_;
  Input axis_ = Input::KV, other_ = Input::Q;
  Expr assumed_ = truth(true);
  bool loose_ = false;
  std::vector<Stop> stops_;
  ir::DigestMap<Known> ends_;
  ir::DigestMap<Can> can_;
};

}  // namespace

bool Bands::exact() const {
  const auto fine = [](const Band& b) { return b.exact; };
  return std::all_of(kept.begin(), kept.end(), fine) && std::all_of(gone.begin(), gone.end(), fine);
}

ir::Signature Cover::signature(const ir::Signature& of_mod) const {
  ir::Signature all = of_mod;
  for (const Summary& s : summaries) {
    const ir::Signature::Capture& c = of_mod.captures[s.capture];
    switch (s.of) {
      case Summary::Of::Least: all.captures.push_back({c.name + "_least", c.type, 2 * c.rank}); break;
      case Summary::Of::Greatest: all.captures.push_back({c.name + "_greatest", c.type, 2 * c.rank}); break;
      case Summary::Of::Sorted: all.captures.push_back({c.name + "_sorted", Type::Bool, c.rank - 1}); break;
      case Summary::Of::RunFirst: all.captures.push_back({c.name + "_run_first", Type::I32, c.rank}); break;
      case Summary::Of::RunLast: all.captures.push_back({c.name + "_run_last", Type::I32, c.rank}); break;
    }
  }
  return all;
}

Cover cover(const Expr& mask, const ir::Signature& signature) {
  Cover made;
  Analysis analysis(signature, made.summaries);
  const auto range = [](Input begin, Input end) { return Ends{ir::input(begin), minus_one(ir::input(end))}; };
  const Ends q = range(Input::QBegin, Input::QEnd), kv = range(Input::KVBegin, Input::KVEnd);
  analysis.tile(q, kv);
  const Can can = analysis.can(mask);
  const auto tidy = [](const Expr& e) { return simplify(e, Analysis::cover_bounds()); };
  made.may_keep = tidy(can.hold);
  made.may_drop = tidy(can.fail);
  // Along an axis the other one is the tile; the axis itself is everything.
  analysis.tile(q, {integer(0), minus_one(ir::input(Input::KVLen))});
  made.along_kv = analysis.solve(mask, Input::KV);
  analysis.tile({ir::input(Input::QBegin), minus_one(ir::input(Input::QEnd))}, kv);
  made.along_q = analysis.solve(mask, Input::Q);
  made.by_batch = ir::uses(mask, Input::B);
  made.by_head = ir::uses(mask, Input::H);
  return made;
}

}  // namespace attune::compiler

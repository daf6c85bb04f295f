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
#include <array>
#include <cmath>
#include <optional>

#include "compiler/lower.h"
#include "compiler/simplify.h"
#include "compiler/trim.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op, ir::Type;

constexpr double tame_limit = 0x1p29;
/// A mask with more spaces than this along an axis is looked at tile by tile instead.
constexpr std::size_t most_spaces = 8;
/// What is larger, written out, is not solved.
constexpr std::uint32_t most_nodes = 300;

/// The Int nearest to a bound: what lies beyond all Ints bounds them just as well.
Expr integer(double value) { return ir::integer(static_cast<std::int32_t>(std::clamp(value, -0x1p31, 0x1p31 - 1))); }
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
      : signature_(signature), summaries_(summaries), range_(coordinate_bounds()), tile_range_(cover_bounds()) {}

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
  // ---- ends of Ints ----

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
      if (!r.empty() && (r.lo > -0x1p31 || r.hi < 0x1p31 - 1)) ends = Ends{integer(r.lo), integer(r.hi)};
    } else {
      // Ends of kv - kv are further apart than its values; what is computed with them relies on the range.
      const ir::Interval r = range_(e);
      if (tile_range_(ends->least).lo < r.lo) ends->least = ir::op(Op::Max, ends->least, integer(r.lo));
      if (tile_range_(ends->most).hi > r.hi) ends->most = ir::op(Op::Min, ends->most, integer(r.hi));
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

  /// A product with its literal behind, where one stands in front.
  static Expr literal_last(const Expr& e) {
    const bool turn = e->op == Op::Mul && ir::is_literal(e->args[0]);
    return turn ? ir::op(Op::Mul, e->args[1], e->args[0]) : e;
  }

  std::optional<Ends> ends_of_two(const Expr& written) {
    const Expr e = literal_last(written);
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
    const bool low_bits = e->op == Op::BitAnd && by >= 0 && by < 0x1p30 &&
                          std::exp2(std::round(std::log2(by + 1))) == by + 1;
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

  bool is_run(const ir::Node& n) const {
    if (n.op != Op::Read || n.bits < signature_.captures.size()) return false;
    const Summary::Of of = summaries_[n.bits - signature_.captures.size()].of;
    return of == Summary::Of::RunFirst || of == Summary::Of::RunLast;
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

  // ---- what Bools can be ----

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
      const Expr before = std::exchange(assumed_, truth(true));
      const auto ends = ends_of_read(e);
      const Expr wild = negated(std::exchange(assumed_, before));
      return ends ? Can{either(wild, ends->most), either(wild, negated(ends->least))} : anything;
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

  // ---- solved for an axis ----

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
    for (const Expr& e : ir::in_order(std::span(&x, 1), ir::SumBodies::Skip))
      if (e->op == Op::Read && ir::uses(e, axis_)) return everything(at, "it is data");
    if (x->size > most_nodes) return everything(at, "it is too large");
    const auto tamely = straight(x);
    if (!tamely) return everything(at, "its arithmetic may wrap around");
    Spaces solved = ordered(at, op, x, y);
    tame_.reset();
    if (is(*tamely, true)) return solved;
    // Only a comparison of tame values is solved; the others may be anything.
    Space wild;
    wild.when = negated(*tamely);
    wild.exact = false;
    for (Space& s : solved) s.when = both(s.when, *tamely);
    return any(solved, {wild});
  }

  /// The condition on the whole tile under which nothing around the axis in `x` wraps, and x is neither the least nor
  /// the greatest Int, so that bounds on it can be moved by one; null if none is known. What
  /// stands beside the axis is assumed tame where ranges alone do not prove it, and `tame_` then knows.
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
        const Expr before = std::exchange(assumed_, truth(true));
        const auto ends = ends_of(aside);
        const Expr assumed = std::exchange(assumed_, before);
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

  Expr within(const Expr& y, double low, double high) {
    const ir::Interval r = range_(y);
    if (r.lo >= low && r.hi <= high) return y;
    return ir::op(Op::Clamp, y, integer(low), integer(high));
  }

  /// x op y, where x is never the least nor the greatest Int.
  Spaces ordered(const Expr& at, Op op, const Expr& x, const Expr& y) {
    // Beyond what x can be, y makes no difference: within, y - 1 and y + 1 cannot wrap.
    const ir::Interval r = tame_ ? (*tame_)(x) : range_(x);
    if (r.empty()) return {};  // never tame: what is not tame is looked at apart
    const auto most = [&](bool strictly) {
      return bounded(at, x, strictly ? minus_one(within(y, r.lo, r.hi + 1)) : within(y, r.lo - 1, r.hi), true);
    };
    const auto least = [&](bool strictly) {
      const Expr more = strictly ? ir::op(Op::Add, within(y, r.lo - 1, r.hi), integer(1)) : within(y, r.lo, r.hi + 1);
      return bounded(at, x, more, false);
    };
    switch (op) {
      case Op::Lt: return most(true);
      case Op::Le: return most(false);
      case Op::Gt: return least(true);
      case Op::Ge: return least(false);
      case Op::Eq: return all(at, most(false), least(false));
      default: return any(most(true), least(true));
    }
  }

  /// x <= bound (from above) or x >= bound: solved for the axis, from the outside of x inwards. `bound` is free of it.
  Spaces bounded(const Expr& at, const Expr& written, const Expr& bound, bool above) {
    const Expr x = literal_last(written);
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
    if (x->arity == 2 && in_first && ir::is_literal(a[1])) {
      const double by = ir::literal_value(*a[1]);
      const bool floors = x->op == Op::FloorDiv || x->op == Op::Shr || (x->op == Op::Div && range_(a[0]).lo >= 0);
      const double divisor = x->op == Op::Shr ? std::exp2(static_cast<std::int32_t>(by) & 31) : by;
      if (floors && divisor > 0 && divisor < 0x1p30) {
        const ir::Interval r = range_(bound);
        if (!fits(r.lo * divisor, r.hi * divisor + divisor - 1))
          return everything(at, "its arithmetic may wrap around");
        const Expr scaled = ir::op(Op::Mul, bound, integer(divisor));
        const Expr limit = above ? ir::op(Op::Add, scaled, integer(divisor - 1)) : scaled;
        return bounded(at, a[0], narrowed(a[0], limit, above), above);
      }
      if (x->op == Op::Mul && by != 0 && by > -0x1p31) {
        // By a negative factor the bound turns round: -2 * kv <= bound is kv >= -floor(bound / 2).
        const ir::Interval r = range_(bound);
        if (!fits(-r.hi, -r.lo)) return everything(at, "its arithmetic may wrap around");
        const auto floored = [&](const Expr& of) { return ir::op(Op::FloorDiv, of, integer(std::fabs(by))); };
        const auto minus = [](const Expr& of) { return ir::op(Op::Neg, of); };
        const Expr limit = above ? (by > 0 ? floored(bound) : minus(floored(bound)))
                                 : (by > 0 ? minus(floored(minus(bound))) : floored(minus(bound)));
        return bounded(at, a[0], narrowed(a[0], limit, above == (by > 0)), above == (by > 0));
      }
    }
    return everything(at, "no bound on the axis follows from it");
  }

  /// A part of min, max or clamp, with or without the axis.
  Spaces side(const Expr& at, const Expr& x, const Expr& bound, bool above) {
    if (ir::uses(x, axis_)) return bounded(at, x, narrowed(x, bound, above), above);
    const Expr holds = ir::op(above ? Op::Le : Op::Ge, x, bound);
    if (fixed(holds)) return where(holds);
    const Can c = can(holds);
    Spaces s = where(c.hold);
    for (Space& space : s) space.exact = false;
    return s;
  }

  /// A bound no further out than one beyond what x can be: the same bound, and arithmetic with it stays small.
  Expr narrowed(const Expr& x, const Expr& bound, bool above) {
    const ir::Interval r = range_(x);
    return within(bound, above ? std::max(r.lo - 1, -0x1p31) : r.lo, above ? r.hi : std::min(r.hi + 1, 0x1p31 - 1));
  }

  /// A value beside the axis in a sum that is known not to wrap: no condition needed, for the comparison as a whole
  /// carries the tameness of its parts. Its range is made known by a clamp that changes nothing then.
  Expr tamed(const Expr& e) {
    const ir::Interval r = tame_ ? (*tame_)(e) : range_(e);
    return within(e, r.lo, r.hi);
  }

  // ---- from spaces to bands ----

  /// Rises, falls or stays the same along the tile's axis?
  enum class Way : std::uint8_t { Same, Rises, Falls, Unknown };
  Way way(const Expr& e) const {
    if (!ir::uses(e, other_)) return Way::Same;
    if (e->size > 8 * most_nodes) return Way::Unknown;
    if (e->op == Op::Input) return Way::Rises;
    const auto turn = [](Way w) { return w == Way::Rises ? Way::Falls : w == Way::Falls ? Way::Rises : w; };
    const auto meet = [](Way a, Way b) { return a == Way::Same ? b : b == Way::Same || a == b ? a : Way::Unknown; };
    const Expr turned = literal_last(e);
    const auto& a = turned->args;
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
    if ((e->op == Op::Add || e->op == Op::Sub) && ir::is_literal(e->args[1]) && e->args[0]->op == Op::Read) {
      const auto inner = over(e->args[0]);
      if (inner) return Ends{ir::op(e->op, inner->least, e->args[1]), ir::op(e->op, inner->most, e->args[1])};
    }
    return ends_of(e);
  }

  /// By how much a bound that rises or falls may move from one position of the tile's axis to the next.
  double step(const Expr& e) const {
    if (!ir::uses(e, other_)) return 0;
    const Expr turned = literal_last(e);
    const auto& a = turned->args;
    switch (e->op) {
      case Op::Input: return 1;
      case Op::Neg: return step(a[0]);
      case Op::Add:
      case Op::Sub: return step(a[0]) + step(a[1]);
      case Op::Min:
      case Op::Max: return std::max(step(a[0]), step(a[1]));
      case Op::Clamp: return std::max({step(a[0]), step(a[1]), step(a[2])});
      case Op::Mul: return step(a[0]) * std::fabs(ir::literal_value(*a[1]));
      case Op::Div:
      case Op::FloorDiv: return std::ceil(step(a[0]) / ir::literal_value(*a[1]));
      case Op::Shr: return step(a[0]);
      default: return HUGE_VAL;
    }
  }

  /// Something simple and never less (`up`) or never more than a bound along the tile's axis: of runs the position
  /// they are around, of x / 16 * 16 the x.
  Expr beside(const Expr& e, bool up) const {
    const auto is_run = [&](const Expr& x, Summary::Of of) {
      return x->op == Op::Read && x->bits >= signature_.captures.size() &&
             summaries_[x->bits - signature_.captures.size()].of == of;
    };
    if (is_run(e, up ? Summary::Of::RunFirst : Summary::Of::RunLast)) return e->args[e->arity - 1u];
    if ((e->op == Op::Add || e->op == Op::Sub) && ir::is_literal(e->args[1])) {
      const Expr& inner = e->args[0];
      const double more = ir::literal_value(*e->args[1]);
      if (!up && e->op == Op::Add)
        if (const auto x = multiple(inner); x && more == ir::literal_value(*inner->args[1]) - 1) return *x;
      const Expr simpler = beside(inner, up);
      return ir::same(simpler, inner) ? e : ir::op(e->op, simpler, e->args[1]);
    }
    if (up)
      if (const auto x = multiple(e)) return *x;
    return e;
  }
  /// x, of x / c * c that rounds down.
  std::optional<Expr> multiple(const Expr& e) const {
    if (e->op != Op::Mul || !ir::is_literal(e->args[1])) return std::nullopt;
    const Expr& block = e->args[0];
    const double by = ir::literal_value(*e->args[1]);
    if (block->arity != 2 || !ir::is_literal(block->args[1])) return std::nullopt;
    const double of = ir::literal_value(*block->args[1]);
    if ((block->op == Op::FloorDiv && of == by) || (block->op == Op::Shr && std::exp2(of) == by)) return block->args[0];
    if (block->op == Op::Div && of == by && ir::range(block->args[0], cover_bounds()).lo >= 0) return block->args[0];
    return std::nullopt;
  }

  /// The same bound on a position: a clamp that only cuts off what no position reaches is taken away.
  static Expr unclamped(const Expr& e, bool above) {
    const auto& a = e->args;
    const bool idle = e->op == Op::Clamp && ir::is_literal(a[1]) && ir::is_literal(a[2]) &&
                      ir::literal_value(*a[1]) <= (above ? -1 : 0) &&
                      ir::literal_value(*a[2]) >= static_cast<double>(max_length) - (above ? 1 : 0);
    return idle ? a[0] : e;
  }

  /// What room there is between a bound from below and one from above, at any one position of the tile.
  struct Room {
    enum { Empty, Asked, Unknown } kind = Unknown;
    Expr when = truth(true);  ///< Asked: no gap is left between the spaces of neighbours if this holds; else no room
  };
  Room room(const Expr& from, const Expr& to) const {
    const auto difference = [](const Expr& low, const Expr& high) -> std::optional<Expr> {
      // As true numbers the difference is far from 2^32, so that it is what its wrapped value says if that is small.
      const ir::Interval l = ir::range(low, cover_bounds()), h = ir::range(high, cover_bounds());
      if (high->op == Op::Add && ir::same(high->args[0], low) && ir::is_literal(high->args[1])) return high->args[1];
      if (h.hi - l.lo > 0x1.7p31 || h.lo - l.hi < -0x1.7p31) return std::nullopt;
      const Expr e = simplify(ir::op(Op::Sub, high, low), cover_bounds());
      const ir::Interval r = ir::range(e, cover_bounds());
      if (r.lo < -0x1.1p30 || r.hi > 0x1.1p30) return std::nullopt;
      return e;
    };
    if (const auto most = difference(beside(from, false), beside(to, true)); most)
      if (ir::range(*most, cover_bounds()).hi < 0) return {Room::Empty, truth(false)};
    const bool runs = from->op == Op::Read && to->op == Op::Read;  // those of one tensor, next to each other
    if (runs || !ir::uses(from, other_) || !ir::uses(to, other_)) return {Room::Asked};
    const double moves = std::min(step(from), step(to));
    const auto exactly = difference(from, to);
    for (const auto& least : {difference(beside(from, true), beside(to, false)), exactly})
      if (least && ir::range(*least, cover_bounds()).lo >= std::max(moves - 1, 0.0)) return {Room::Asked};
    // The same room everywhere, known when the mask is used.
    if (moves > 1 || !exactly || ir::uses(*exactly, other_)) return {};
    return {Room::Asked, ir::op(Op::Ge, *exactly, integer(0))};
  }

  void add(std::vector<Band>& bands, const Space& space) {
    const Ends q = q_, kv = kv_;
    Ends& tile = other_ == Input::Q ? q_ : kv_;
    Expr when = space.when;
    // Is anything of the tile left? Its own begin is below its own end.
    for (const Expr& from : space.tile_from) {
      when = both(when, ir::op(Op::Le, from, tile.most));
      for (const Expr& to : space.tile_to) when = both(when, ir::op(Op::Le, from, to));
    }
    for (const Expr& to : space.tile_to) when = both(when, ir::op(Op::Le, tile.least, to));
    for (const Expr& e : space.tile_from) tile.least = ir::op(Op::Max, tile.least, e);
    for (const Expr& e : space.tile_to) tile.most = ir::op(Op::Min, tile.most, e);
    ends_.clear();
    can_.clear();
    assumed_ = truth(true);
    loose_ = false;
    bool exact = space.exact, rises = true, falls = true, empty = false;
    const Band wide{axis_ == Input::Q ? ir::input(Input::QBegin) : integer(0),
                    axis_ == Input::Q ? ir::input(Input::QEnd) : ir::input(Input::KVLen), false};
    Expr begin = wide.begin, end = wide.end;
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
    exact &= !loose_ && (rises || falls);
    // The spaces of the tile's positions, next to each other, leave no gap and none of them is empty.
    if (exact)
      for (const Expr& from : space.from)
        for (const Expr& to : space.to) {
          const Room r = room(unclamped(from, false), unclamped(to, true));
          empty |= r.kind == Room::Empty;
          exact &= r.kind == Room::Asked;
          when = both(when, r.when);
        }
    const Expr tamely = std::exchange(assumed_, truth(true));
    q_ = q;
    kv_ = kv;
    ends_.clear();
    can_.clear();
    const auto push = [&](const Expr& from, const Expr& to, const Expr& condition, bool says_all) {
      const Expr last = is(condition, true) ? to : ir::op(Op::Where, condition, to, from);
      ir::Bounds bounds = cover_bounds();
      for (const Expr& e : ir::in_order(std::array{from, last}))
        if (is_run(*e)) bounds.facts[e->digest] = {0, static_cast<double>(after_all), false};
      ir::Ranger range(bounds);
      const auto tidy = [&](const Expr& e) {
        return strict(trim(simplify(e, bounds), 0, static_cast<double>(max_length), range), range);
      };
      Band band{tidy(from), tidy(last), says_all};
      if (range(band.end).hi > range(band.begin).lo && !ir::same(band.begin, band.end))
        bands.push_back(std::move(band));
    };
    if (!empty) push(begin, end, both(when, tamely), exact);
    // A bound is no bound where a value is not tame: then everything is within.
    if (!is(tamely, true)) push(wide.begin, wide.end, both(space.when, negated(tamely)), false);
  }

 public:
  static ir::Bounds cover_bounds() {
    ir::Bounds bounds = coordinate_bounds();
    for (const Input which : {Input::QBegin, Input::KVBegin})
      bounds[which] = {0, static_cast<double>(max_length - 1), false};
    for (const Input which : {Input::QEnd, Input::KVEnd}) bounds[which] = {1, static_cast<double>(max_length), false};
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
  ir::Ranger range_, tile_range_;   ///< of the mask's expressions, and of those over a tile
  std::optional<ir::Ranger> tame_;  ///< while a comparison is solved that is assumed tame
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

Expr kept_by_score(const Expr& score) {
  ir::Ranger range(coordinate_bounds());
  const auto neither_nan_nor_top = [&](const Expr& e) {
    const ir::Interval r = range(e);
    return !r.nan && r.hi < HUGE_VAL;
  };
  const auto positive = [&](const Expr& e) {
    const ir::Interval r = range(e);
    return !r.nan && r.lo > 0 && r.hi < HUGE_VAL;
  };
  ir::DigestMap<Expr> kept;
  for (const Expr& e : ir::in_order(std::span(&score, 1), ir::SumBodies::Skip)) {
    if (e->type != Type::F32) continue;
    const auto of = [&](std::size_t i) { return kept.at(e->args[i]->digest); };
    Expr k = truth(true);
    switch (e->op) {
      case Op::Literal: k = truth(!ir::is_literal(e, -HUGE_VAL)); break;
      case Op::Where: {
        const Expr& c = e->args[0];
        // What the product of q and k decides is not known of a tile.
        const bool decides = !ir::uses(c, Input::S);
        k = decides ? either(both(c, of(1)), both(negated(c), of(2))) : either(of(1), of(2));
        break;
      }
      case Op::Add:
        if (neither_nan_nor_top(e->args[1])) k = both(k, of(0));
        if (neither_nan_nor_top(e->args[0])) k = both(k, of(1));
        break;
      case Op::Mul:
        if (positive(e->args[1])) k = both(k, of(0));
        if (positive(e->args[0])) k = both(k, of(1));
        break;
      case Op::Div:
        if (positive(e->args[1])) k = of(0);
        break;
      case Op::Min: k = both(of(0), of(1)); break;
      case Op::Max: k = either(of(0), of(1)); break;
      case Op::Custom: k = of(0); break;
      case Op::Log:
      case Op::Log2: {
        const Expr& x = e->args[0];
        if (x->op == Op::F32 && x->args[0]->type == Type::Bool && !ir::uses(x->args[0], Input::S)) k = x->args[0];
        break;
      }
      default: break;
    }
    kept.emplace(e->digest, k);
  }
  return kept.at(score->digest);
}

Cover cover(const Expr& of_mask, const ir::Signature& signature, const Expr& score) {
  Cover made;
  made.mask = score ? simplify(both(of_mask, kept_by_score(score)), coordinate_bounds()) : of_mask;
  const Expr& mask = made.mask;
  Analysis analysis(signature, made.summaries);
  const auto span = [](Input begin, Input end) { return Ends{ir::input(begin), minus_one(ir::input(end))}; };
  const Ends q = span(Input::QBegin, Input::QEnd), kv = span(Input::KVBegin, Input::KVEnd);
  analysis.tile(q, kv);
  const Can can = analysis.can(mask);
  ir::Ranger range(Analysis::cover_bounds());
  const auto tidy = [&](const Expr& e) { return strict(simplify(e, Analysis::cover_bounds()), range); };
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

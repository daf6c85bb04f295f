// compiler/tile.cpp — bounds on a mask's Ints and Bools over the pairs of a tile, as expressions of the tile
#include "compiler/tile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "compiler/lower.h"

namespace attune::compiler {

using ir::Expr, ir::Input, ir::Op, ir::Type;

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
Expr literal_last(const Expr& e) {
  const bool turn = e->op == Op::Mul && ir::is_literal(e->args[0]);
  return turn ? ir::op(Op::Mul, e->args[1], e->args[0]) : e;
}

bool is_fixed(const Expr& e) { return !ir::uses(e, Input::Q) && !ir::uses(e, Input::KV) && !e->random; }
bool fits(double low, double high) { return low >= -0x1p31 && high <= 0x1p31 - 1; }

ir::Bounds cover_bounds() {
  ir::Bounds bounds = coordinate_bounds();
  for (const Input which : {Input::QBegin, Input::KVBegin})
    bounds[which] = {0, static_cast<double>(max_length - 1), false};
  for (const Input which : {Input::QEnd, Input::KVEnd}) bounds[which] = {1, static_cast<double>(max_length), false};
  return bounds;
}

Tile::Tile(const ir::Signature& signature, std::vector<Summary>& summaries)
    : signature_(signature), summaries_(summaries), range_(coordinate_bounds()), tile_range_(cover_bounds()) {}

void Tile::set(Ends q, Ends kv) {
  q_ = std::move(q);
  kv_ = std::move(kv);
  ends_.clear();
  can_.clear();
}

// ---- ends of Ints ----

Tile::Known Tile::ends(const Expr& e) {
  const Expr assumed = std::exchange(assumed_, truth(true));
  const bool loose = std::exchange(loose_, false);
  const auto ends = ends_of(e);
  return {ends, std::exchange(assumed_, assumed), std::exchange(loose_, loose)};
}

/// The range of an operand of arithmetic. A value without a useful range is assumed tame; the assumption goes to
/// `assumed_` and becomes part of the result's condition.
std::optional<ir::Interval> Tile::operand(const Expr& e) {
  const ir::Interval r = range_(e);
  if (r.hi - r.lo <= 0x1p31) return r;
  const auto ends = ends_of(e);
  if (!ends) return std::nullopt;
  const Expr low = ir::op(Op::Ge, ends->least, integer(-tame_limit));
  const Expr high = ir::op(Op::Le, ends->most, integer(tame_limit));
  assumed_ = both(assumed_, both(low, high));
  return ir::Interval{-tame_limit, tame_limit, false};
}

std::optional<Ends> Tile::ends_of(const Expr& e) {
  if (is_fixed(e)) return Ends{e, e};
  if (const auto found = ends_.find(e->digest); found != ends_.end()) {
    assumed_ = both(assumed_, found->second.assumed);
    loose_ |= found->second.loose;
    return found->second.ends;
  }
  const Expr before = std::exchange(assumed_, truth(true));
  const bool loose = std::exchange(loose_, false);
  std::optional<Ends> ends = e->depth > 200 ? std::nullopt : ends_node(e);
  if (!ends) {
    // Fall back on its range over all coordinates, if that is narrower than every Int.
    assumed_ = truth(true);
    loose_ = true;
    const ir::Interval r = range_(e);
    if (!r.empty() && (r.lo > -0x1p31 || r.hi < 0x1p31 - 1)) ends = Ends{integer(r.lo), integer(r.hi)};
  } else {
    // The ends of kv - kv lie further apart than its values: clamp them to the range, which later arithmetic relies on.
    const ir::Interval r = range_(e);
    if (tile_range_(ends->least).lo < r.lo) ends->least = ir::op(Op::Max, ends->least, integer(r.lo));
    if (tile_range_(ends->most).hi > r.hi) ends->most = ir::op(Op::Min, ends->most, integer(r.hi));
  }
  ends_.emplace(e->digest, Known{ends, assumed_, loose_});
  assumed_ = both(before, assumed_);
  loose_ |= loose;
  return ends;
}

std::optional<Ends> Tile::ends_node(const Expr& e) {
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

std::optional<Ends> Tile::ends_of_one(const Expr& e) {
  const auto x = ends_of(e->args[0]);
  const auto r = operand(e->args[0]);
  if (!x || !r) return std::nullopt;
  if (e->op == Op::BitNot) return Ends{ir::op(Op::BitNot, x->most), ir::op(Op::BitNot, x->least)};
  if (!fits(-r->hi, -r->lo)) return std::nullopt;
  if (e->op == Op::Neg) return Ends{ir::op(Op::Neg, x->most), ir::op(Op::Neg, x->least)};
  if (e->op != Op::Abs) return std::nullopt;
  // |x| is smallest at 0 if x reaches it in the tile, else at the end nearer to 0.
  const Expr nearer = ir::op(Op::Max, x->least, ir::op(Op::Neg, x->most));
  return Ends{ir::op(Op::Max, nearer, integer(0)), ir::op(Op::Max, ir::op(Op::Neg, x->least), x->most)};
}

std::optional<Ends> Tile::ends_of_two(const Expr& written) {
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
    // Within one period the remainder rises with x; across a period's end it takes all values, or nearly all.
    const Expr period = low_bits ? integer(by + 1) : e->args[1];
    const Expr one = ir::op(Op::Eq, ir::op(Op::FloorDiv, x->least, period), ir::op(Op::FloorDiv, x->most, period));
    return Ends{ir::op(Op::Where, one, ir::op(Op::FloorMod, x->least, period), integer(0)),
                ir::op(Op::Where, one, ir::op(Op::FloorMod, x->most, period), minus_one(period))};
  }
  return std::nullopt;
}

std::uint32_t Tile::summary(Summary::Of of, std::uint32_t capture) {
  const Summary wanted{of, capture};
  const auto found = std::find(summaries_.begin(), summaries_.end(), wanted);
  const auto index = static_cast<std::size_t>(found - summaries_.begin());
  if (found == summaries_.end()) summaries_.push_back(wanted);
  return static_cast<std::uint32_t>(signature_.captures.size() + index);
}

std::optional<Summary::Of> Tile::summary_read(const Expr& e) const {
  if (e->op != Op::Read || e->bits < signature_.captures.size()) return std::nullopt;
  return summaries_[e->bits - signature_.captures.size()].of;
}

std::optional<Ends> Tile::ends_of_read(const Expr& e) {
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

// ---- possible values of Bools ----

Can Tile::can(const Expr& mask) {
  if (const auto found = can_.find(mask->digest); found != can_.end()) return found->second;
  for (const Expr& e : ir::in_order(std::span(&mask, 1), ir::SumBodies::Skip))
    if (e->type == Type::Bool && !can_.contains(e->digest)) can_.emplace(e->digest, can_node(e));
  return can_.at(mask->digest);
}

namespace {

Can compared(Op op, const Ends& x, const Ends& y) {
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

}  // namespace

Can Tile::can_node(const Expr& e) {
  const auto of = [&](std::size_t i) { return can(e->args[i]); };
  if (is_fixed(e)) return {e, negated(e)};
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
  if (!ir::compares(e->op)) return anything;
  if (e->args[0]->type == Type::Bool) {
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

}  // namespace attune::compiler

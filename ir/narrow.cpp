// ir/narrow.cpp — facts from conditions: the facts that a condition implies about its parts, top down
#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/range.h"

namespace attune::ir {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double least_int = std::numeric_limits<std::int32_t>::min();
constexpr double most_int = std::numeric_limits<std::int32_t>::max();

/// Collects the facts that a condition implies about its parts.
class Narrowing {
 public:
  explicit Narrowing(const Bounds& bounds) : range_(bounds, 0), found_(bounds) {}
  void run(const Expr& condition, bool truth) {
    learn(condition, Interval::point(truth));
    while (!todo_.empty()) {
      const auto [e, now] = std::move(todo_.back());
      todo_.pop_back();
      descend(*e, now);
    }
  }
  Bounds found() && { return std::move(found_); }

 private:
  struct Learned {
    Interval now;
    int visits = 0;
  };
  /// Every path to a shared node may narrow it again: a limit.
  static constexpr int most_visits = 4;

  /// Records the fact that `e` lies in `fact`. Follows the fact into the arguments if it is new, or if an earlier run
  /// found it and the arguments may be better known by now.
  void learn(const Expr& e, const Interval& fact) {
    if (is_literal(e)) return;
    Learned& learned = learned_.try_emplace(e->digest, Learned{range_(e)}).first->second;
    const Interval now = intersect(e->type == Type::F32 ? outward(fact) : fact, learned.now);
    const bool again = learned.visits == 0 && found_.facts.contains(e->digest);
    if (now == learned.now && !again) return;
    learned.now = now;
    record(*e, now);
    if (learned.visits++ < most_visits) todo_.emplace_back(e, now);
  }
  void record(const Node& n, const Interval& now) {
    if (n.op == Op::Input) {
      Interval& known = found_[static_cast<Input>(n.bits)];
      known = intersect(known, now);
      return;
    }
    const auto [known, fresh] = found_.facts.emplace(n.digest, now);
    if (!fresh) known->second = intersect(known->second, now);
  }

  void descend(const Node& n, const Interval& now);
  void convert(const Node& n, const Interval& now);
  void by_literal(const Node& n, const Interval& now);
  void compare(const Node& n, bool truth);
  void ordered(const Expr& low, const Expr& high, bool strict, bool maybe_nan);
  void unequal(const Expr& a, const Expr& b);
  void difference(const Expr& a, const Expr& b, const Interval& now);
  void sum_of(const Expr& a, const Interval& b, const Interval& now);
  void scaled(const Expr& x, double by, const Interval& now);
  void blocks(const Expr& x, double by, const Interval& now);

  Ranger range_;
  Bounds found_;
  DigestMap<Learned> learned_;
  std::vector<std::pair<Expr, Interval>> todo_;
};

/// `n` lies in `now`: narrows its arguments if that fact restricts them. The ops that are not handled here are not
/// invertible on intervals, or rare in conditions.
void Narrowing::descend(const Node& n, const Interval& now) {
  if (now.empty() || (n.type == Type::Bool && now.lo != now.hi)) return;
  const auto arg = [&](std::size_t i) -> const Expr& { return n.args[i]; };
  const bool ints = n.arity > 0 && n.args[n.arity - 1u]->type == Type::I32;
  if (compares(n.op)) return compare(n, now.is(1));
  if (n.op == Op::Not) return learn(arg(0), {1 - now.hi, 1 - now.lo, false});
  if (n.op == Op::And || n.op == Op::Or) {
    const double passes = n.op == Op::And ? 1 : 0;
    for (std::size_t i = 0; i < 2; ++i)
      if (now.is(passes) || range_(arg(1 - i)).is(passes)) learn(arg(i), now);
    return;
  }
  if (n.op == Op::Where) {
    const Interval first = intersect(range_(arg(1)), now), second = intersect(range_(arg(2)), now);
    if (first.empty() || range_(arg(0)).is(0)) {
      learn(arg(0), Interval::point(0));
      learn(arg(2), now);
    } else if (second.empty() || range_(arg(0)).is(1)) {
      learn(arg(0), Interval::point(1));
      learn(arg(1), now);
    }
    return;
  }
  if (n.op == Op::Add) {
    sum_of(arg(0), range_(arg(1)), now);
    sum_of(arg(1), range_(arg(0)), now);
    return;
  }
  if (n.op == Op::Sub) {
    difference(arg(0), arg(1), now);
    return;
  }
  if (n.op == Op::Neg) {
    if (!ints || range_(arg(0)).lo > least_int) learn(arg(0), {-now.hi, -now.lo, now.nan});
    return;
  }
  if (n.op == Op::Abs) {
    const Interval x = range_(arg(0));
    if (ints && x.lo == least_int && now.lo < 0) return;
    const double least = std::max(now.lo, 0.0);
    learn(arg(0), {x.lo > -least ? least : -now.hi, x.hi < least ? -least : now.hi, now.nan});
    return;
  }
  if (n.op == Op::Min || n.op == Op::Max) {
    const Interval open = n.op == Op::Min ? Interval{now.lo, infinity, true} : Interval{-infinity, now.hi, true};
    for (std::size_t i = 0; i < 2; ++i) learn(arg(i), open);
    return;
  }
  if (n.op == Op::F32 || n.op == Op::I32) return convert(n, now);
  if (ints && n.arity == 2) by_literal(n, now);
}

/// A conversion lies in `now`.
void Narrowing::convert(const Node& n, const Interval& now) {
  const Expr& x = n.args[0];
  if (n.op == Op::F32 && x->type == Type::I32) {
    // Exact up to 2^24; beyond that the conversion rounds, so the Int may lie just outside.
    const bool exact = std::fabs(now.lo) < 0x1p24 && std::fabs(now.hi) < 0x1p24;
    const Interval whole = exact ? now : outward(now, 1);
    return learn(x, {std::ceil(whole.lo), std::floor(whole.hi), false});
  }
  if (n.op == Op::I32 && x->type == Type::F32) {
    const bool zero = now.lo <= 0 && 0 <= now.hi;
    return learn(x, {now.lo == least_int ? -infinity : now.lo - 1, now.hi == most_int ? infinity : now.hi + 1, zero});
  }
}

/// An operation of Ints lies in `now`; one argument may be a literal.
void Narrowing::by_literal(const Node& n, const Interval& now) {
  const Expr &a = n.args[0], &b = n.args[1];
  if (n.op == Op::Mul && is_literal(a)) return scaled(b, literal_value(*a), now);
  if (!is_literal(b)) return;
  const double by = literal_value(*b);
  if (n.op == Op::Mul) return scaled(a, by, now);
  if (n.op == Op::FloorDiv || (n.op == Op::Div && range_(a).lo >= 0)) return blocks(a, by, now);
  if (n.op == Op::Shr) return blocks(a, std::exp2(static_cast<int>(by) & 31), now);
}

void Narrowing::compare(const Node& n, bool truth) {
  const Expr &a = n.args[0], &b = n.args[1];
  if (n.op == Op::Eq || n.op == Op::Ne) {
    if ((n.op == Op::Eq) != truth) return unequal(a, b);
    const Interval both = intersect(range_(a), range_(b));
    const Interval common{both.lo, both.hi, false};
    learn(a, common);
    learn(b, common);
    if (a->type != Type::Bool) difference(a, b, Interval{0, 0, a->type == Type::F32});
    return;
  }
  // !(a < b) means b <= a, or one of them is NaN.
  const bool less = n.op == Op::Lt || n.op == Op::Le, strict = n.op == Op::Lt || n.op == Op::Gt;
  if (less == truth)
    ordered(a, b, strict == truth, !truth);
  else
    ordered(b, a, strict == truth, !truth);
}

/// low <= high (low < high if `strict`), or, if `maybe_nan`, one of them is NaN.
void Narrowing::ordered(const Expr& low, const Expr& high, bool strict, bool maybe_nan) {
  const Interval x = range_(low), y = range_(high);
  const bool ints = low->type == Type::I32;
  const double step = ints && strict ? 1 : 0;
  if (!maybe_nan || !y.nan) learn(low, {-infinity, y.hi - step, maybe_nan});
  if (!maybe_nan || !x.nan) learn(high, {x.lo + step, infinity, maybe_nan});
  // Rounding keeps the sign of a difference; infinity - infinity is NaN.
  if (ints || !maybe_nan) difference(low, high, {-infinity, -step, !ints});
}

void Narrowing::unequal(const Expr& a, const Expr& b) {
  if (a->type == Type::F32) return;
  const Interval x = range_(a), y = range_(b);
  const auto without = [](Interval all, const Interval& point) {
    if (point.lo != point.hi) return all;
    if (all.lo == point.lo) ++all.lo;
    if (all.hi == point.lo) --all.hi;
    return all;
  };
  learn(a, without(x, y));
  learn(b, without(y, x));
}

/// a - b lies in `now`: recorded for a - b and for b - a, then followed into a and b.
void Narrowing::difference(const Expr& a, const Expr& b, const Interval& now) {
  const Interval x = range_(a), y = range_(b);
  if (a->type == Type::I32 && !difference_fits(x, y)) return;
  if (!is_literal(a) && !is_literal(b)) {
    const Expr forward = op(Op::Sub, a, b), backward = op(Op::Sub, b, a);
    record(*forward, intersect(range_(forward), now));
    record(*backward, intersect(range_(backward), {-now.hi, -now.lo, now.nan}));
  }
  sum_of(a, {-y.hi, -y.lo, y.nan}, now);
  sum_of(b, {-x.hi, -x.lo, x.nan}, {-now.hi, -now.lo, now.nan});
}

/// a + b lies in `now`.
void Narrowing::sum_of(const Expr& a, const Interval& b, const Interval& now) {
  const Interval x = range_(a);
  if (a->type == Type::I32) {
    if (x.lo + b.lo >= least_int && x.hi + b.hi <= most_int) learn(a, {now.lo - b.hi, now.hi - b.lo, false});
    return;
  }
  if (now.nan && b.nan) return;
  // The unrounded sum may lie half an ulp outside.
  const Interval sum = outward(now, 1);
  const double lo = sum.lo - b.hi, hi = sum.hi - b.lo;
  learn(a, {std::isnan(lo) ? -infinity : lo, std::isnan(hi) ? infinity : hi, now.nan});
}

/// x * by lies in `now`, by a literal.
void Narrowing::scaled(const Expr& x, double by, const Interval& now) {
  const Interval before = range_(x);
  const double a = before.lo * by, b = before.hi * by;
  if (by == 0 || std::min(a, b) < least_int || std::max(a, b) > most_int) return;
  const double lo = (by > 0 ? now.lo : now.hi) / by, hi = (by > 0 ? now.hi : now.lo) / by;
  learn(x, {std::ceil(lo), std::floor(hi), false});
}

/// floordiv(x, by) lies in `now`, by a literal.
void Narrowing::blocks(const Expr& x, double by, const Interval& now) {
  if (by > 0) learn(x, {now.lo * by, now.hi * by + by - 1, false});
}

}  // namespace

Bounds assume(const Expr& condition, bool truth, const Bounds& bounds) {
  // Two passes, so that each side of an && uses the facts of the other.
  Narrowing first(bounds);
  first.run(condition, truth);
  Narrowing second(std::move(first).found());
  second.run(condition, truth);
  return std::move(second).found();
}

}  // namespace attune::ir

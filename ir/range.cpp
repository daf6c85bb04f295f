// ir/range.cpp — ranges bottom up, narrowed by facts about sub-expressions, which conditions imply
#include "ir/range.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <attune/error.h>

namespace attune::ir {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double least_int = std::numeric_limits<std::int32_t>::min();
constexpr double most_int = std::numeric_limits<std::int32_t>::max();

/// Above these sizes, the branches of a where are not analysed under its condition.
constexpr std::uint32_t largest_condition = 32;
constexpr std::uint32_t largest_branch = 256;

/// The part of an interval given from outside that the type allows.
Interval typed(const Interval& x, Type type) {
  const Interval allowed = intersect(x, Interval::all(type));
  return type == Type::F32 ? outward(allowed) : allowed;
}

Interval by_slot(const std::vector<Interval>& known, const Node& n) {
  return n.bits < known.size() ? typed(known[n.bits], n.type) : Interval::all(n.type);
}

/// The range of x op x, where it is narrower than for two unrelated values of the same range.
std::optional<Interval> of_itself(const Node& n, const Interval& x) {
  const bool finite = x.lo > -infinity && x.hi < infinity;
  const bool zero = x.lo <= 0 && 0 <= x.hi;
  const auto unless_nan = [&](double value) { return x.nan ? Interval{0, 1, false} : Interval::point(value); };
  if (n.op == Op::Sub) return Interval{0, 0, x.nan || !finite};
  if (n.op == Op::Add && n.type == Type::F32) return outward({x.lo + x.lo, x.hi + x.hi, x.nan});
  if (n.op == Op::BitXor) return Interval::point(0);
  if (n.op == Op::BitAnd || n.op == Op::BitOr) return x;
  if (n.op == Op::Div && n.type == Type::F32) return Interval{1, 1, x.nan || !finite || zero};
  if (n.op == Op::Lt || n.op == Op::Gt) return Interval::point(0);
  if (n.op == Op::Eq || n.op == Op::Le || n.op == Op::Ge) return unless_nan(1);
  if (n.op == Op::Ne) return unless_nan(0);
  if (n.op != Op::Mul) return std::nullopt;
  const double most = std::max(std::fabs(x.lo), std::fabs(x.hi));
  const double least = zero ? 0 : std::min(std::fabs(x.lo), std::fabs(x.hi));
  if (n.type == Type::F32) return outward({least * least, most * most, x.nan});
  return most * most <= most_int ? Interval{least * least, most * most, false} : Interval::all(Type::I32);
}

}  // namespace

Bounds::Bounds() {
  inputs.fill({0, most_int, false});
  (*this)[Input::S] = Interval::all(Type::F32);
  (*this)[Input::P] = {0, 1, true};
  static const Expr ahead = op(Op::Sub, input(Input::KVLen), input(Input::KV));
  static const Expr behind = op(Op::Sub, input(Input::KV), input(Input::KVLen));
  facts = {{ahead->digest, {1, most_int, false}}, {behind->digest, {-most_int, -1, false}}};
}
// So that no process is forked while another thread makes the two.
[[maybe_unused]] const Bounds made_at_load;

Ranger::Ranger(Bounds bounds, std::size_t spare) : bounds_(std::move(bounds)), spare_(spare) {
  extent_.fill(max_sum_count);
}

Interval Ranger::operator()(const Expr& e) {
  // A free variable is known only to be below the longest sum: forget what earlier sums knew of the same binder.
  if (e->free) std::for_each(known_.begin(), known_.end() - 1, [](Known& known) { known.clear(); });
  return walk(*e);
}

Interval Ranger::walk(const Node& root) {
  struct Visit {
    const Node* node;
    std::uint8_t next;
  };
  std::vector<Visit> stack;
  const auto visit = [&](const Node& n) {
    if (!known_of(n).contains(n.digest)) stack.push_back({&n, 0});
  };
  visit(root);
  while (!stack.empty()) {
    const Node& n = *stack.back().node;
    // of_sum() walks the body itself, once the variable's range is set.
    if (n.op != Op::Sum && stack.back().next < n.arity) {
      visit(*n.args[stack.back().next++]);
      continue;
    }
    stack.pop_back();
    Interval now = of(n);
    if (const auto fact = bounds_.facts.find(n.digest); fact != bounds_.facts.end()) now = intersect(now, fact->second);
    known_of(n).emplace(n.digest, now);
  }
  return known_of(root).at(root.digest);
}

Interval Ranger::of(const Node& n) {
  if (n.op == Op::Literal) return typed(Interval::point(literal_value(n)), n.type);
  if (n.op == Op::Input) return typed(bounds_[static_cast<Input>(n.bits)], n.type);
  if (n.op == Op::Param) return by_slot(bounds_.params, n);
  if (n.op == Op::Read) return by_slot(bounds_.captures, n);
  if (n.op == Op::Field) return Interval::all(n.type);
  if (n.op == Op::Bound) return {0, extent_[static_cast<std::size_t>(std::countr_zero(n.free))] - 1.0, false};
  if (n.op == Op::Sum) return of_sum(n);
  return of_arguments(n);
}

Interval Ranger::of_arguments(const Node& n) {
  std::array<Interval, max_args> found;
  for (std::size_t i = 0; i < n.arity; ++i) found[i] = known_of(*n.args[i]).at(n.args[i]->digest);
  const std::span<const Interval> args(found.data(), n.arity);
  if (n.arity == 2 && same(n.args[0], n.args[1]) && found[0].numbers())
    if (const auto exact = of_itself(n, found[0])) return *exact;
  if (n.op == Op::Where) return of_where(n, args);
  if (compares(n.op)) return of_comparison(n, args);
  return apply(n.op, n.args[n.arity - 1u]->type, args);
}

Interval Ranger::of_sum(const Node& n) {
  const std::uint32_t length = sum_count(n);
  const std::size_t variable = sum_binder(n) - 1;
  if (length == 0) return Interval::point(0);
  known_[variable].clear();
  extent_[variable] = length;
  const Interval body = walk(*n.args[0]);
  known_[variable].clear();
  extent_[variable] = max_sum_count;
  if (body.empty()) return body;
  if (n.type == Type::I32) {
    const std::array args{body, Interval::point(length)};
    return apply(Op::Mul, Type::I32, args);
  }
  // Rounding errors accumulate, so add term by term, until the total no longer changes.
  Interval total = Interval::point(0);
  for (std::uint32_t i = 0; i < length; ++i) {
    const Interval before = total;
    total = apply(Op::Add, Type::F32, std::array{total, body});
    if (total == before) break;
  }
  return total;
}

/// If the difference of two Ints cannot wrap, they compare as it does to 0, and a fact may bound it more tightly.
Interval Ranger::of_comparison(const Node& n, std::span<const Interval> args) const {
  const Type type = n.args[0]->type;
  const Interval plain = apply(n.op, type, args);
  if (plain.lo == plain.hi || type != Type::I32 || bounds_.facts.empty() || is_literal(n.args[0]) ||
      is_literal(n.args[1]) || !difference_fits(args[0], args[1]))
    return plain;
  const auto fact = bounds_.facts.find(op(Op::Sub, n.args[0], n.args[1])->digest);
  return fact == bounds_.facts.end() ? plain : apply(n.op, type, std::array{fact->second, Interval::point(0)});
}

Interval Ranger::of_where(const Node& n, std::span<const Interval> args) {
  const Interval plain = apply(Op::Where, n.type, args);
  const std::size_t visits = n.size + bounds_.facts.size();
  const bool cheap = n.args[0]->size <= largest_condition && n.size <= largest_branch && visits <= spare_;
  if (args[0].lo == args[0].hi || !cheap) return plain;
  spare_ -= visits;
  return intersect(plain, unite(under(n.args[0], true, n.args[1]), under(n.args[0], false, n.args[2])));
}

Interval Ranger::under(const Expr& condition, bool truth, const Expr& e) {
  Ranger inner(assume(condition, truth, bounds_), spare_);
  inner.extent_ = extent_;
  // A contradictory condition never holds.
  const Interval found = inner.walk(*condition).empty() ? Interval::none() : inner.walk(*e);
  spare_ = inner.spare_;
  return found;
}

Interval range(const Expr& e, const Bounds& bounds) { return Ranger(bounds)(e); }

namespace {

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
  /// Every path to a shared node may narrow it again; this limits how often.
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

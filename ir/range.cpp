// ir/range.cpp — ranges bottom up, narrowed by facts about sub-expressions
#include "ir/range.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <attune/error.h>

namespace attune::ir {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
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

}  // namespace attune::ir

// ir/range.h — the values an expression can take under known bounds, and the bounds a condition implies
#pragma once

#include <array>
#include <bit>
#include <span>
#include <vector>

#include "ir/node.h"

namespace attune::ir {

/// The values an expression can take: [lo, hi], and NaN if `nan`. Int within i32, Bool within [0, 1].
/// Float bounds hold for both precisions of eval: they are widened by the errors of rounding and of library functions.
/// No numbers: lo > hi. Empty (no NaN either): the assumptions contradict each other.
struct Interval {
  double lo = 0, hi = 0;
  bool nan = false;

  static Interval all(Type type);
  static Interval point(double value);
  static Interval none();
  bool contains(double value) const;
  bool numbers() const { return lo <= hi; }
  bool empty() const { return !numbers() && !nan; }
  bool is(double value) const { return lo == value && hi == value && !nan; }
  bool operator==(const Interval&) const = default;
};

Interval unite(const Interval& a, const Interval& b);
Interval intersect(const Interval& a, const Interval& b);
/// True if `outer` contains all of `inner`.
bool within(const Interval& inner, const Interval& outer);

/// True if, for Ints, neither a - b nor b - a can wrap.
bool difference_fits(const Interval& a, const Interval& b);

/// Moves the bounds outward to f32 values, then `ulps` further: an interval that contains a value in f64 then also
/// contains it rounded to f32. A subnormal bound moves to 0 where the interval would exclude 0, so that an engine may
/// flush denormals to zero.
Interval outward(const Interval& x, int ulps = 0);

/// One operation on intervals: contains `apply` of ir/eval.h for all values in the arguments.
/// A Bug for leaves, reads and sums, which need Bounds.
Interval apply(Op op, Type of_args, std::span<const Interval> args);

/// The facts that are known before an expression is analysed.
struct Bounds {
  std::array<Interval, input_count> inputs;  ///< coordinates and lengths are never negative, p is within [0, 1]
  std::vector<Interval> params;              ///< by slot; slots past the end may hold anything
  std::vector<Interval> captures;            ///< the elements of captured tensors, likewise
  DigestMap<Interval> facts;                 ///< ranges of whole sub-expressions; initially kv < kv_len

  Bounds();
  Interval& operator[](Input which) { return inputs[static_cast<std::size_t>(which)]; }
  const Interval& operator[](Input which) const { return inputs[static_cast<std::size_t>(which)]; }
};

/// Ranges of expressions under fixed bounds; caches its results.
/// `where(c, a, b)` assumes c for a and !c for b when both are small and the budget of `spare` node visits lasts:
/// nested ones would otherwise cost 2^depth.
class Ranger {
 public:
  explicit Ranger(Bounds bounds, std::size_t spare = 20'000);
  Interval operator()(const Expr& e);
  const Bounds& bounds() const { return bounds_; }

 private:
  using Known = DigestMap<Interval>;
  Known& known_of(const Node& n) { return known_[static_cast<std::size_t>(std::countr_zero(n.free))]; }
  Interval walk(const Node& root);
  Interval of(const Node& n);
  Interval of_arguments(const Node& n);
  Interval of_sum(const Node& n);
  Interval of_comparison(const Node& n, std::span<const Interval> args) const;
  Interval of_where(const Node& n, std::span<const Interval> args);
  Interval under(const Expr& condition, bool truth, const Expr& e);

  Bounds bounds_;
  /// By the innermost binder a node depends on; the last is for closed nodes. Many sums use the same bound variable, so
  /// ranges that depend on it are dropped when another sum begins.
  std::array<Known, 33> known_;
  std::array<std::uint32_t, 32> extent_;  ///< by binder: its variable is below this
  std::size_t spare_;
};

Interval range(const Expr& e, const Bounds& bounds = {});

/// The bounds narrowed by `condition` being `truth`: comparisons narrow both sides and their difference, and facts
/// propagate down through + - * neg abs min max f32 i32, divisions by a literal, where, && (true) and || (false).
/// Sound: every value that satisfies the condition stays within.
Bounds assume(const Expr& condition, bool truth, const Bounds& bounds);

}  // namespace attune::ir

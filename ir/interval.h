// ir/interval.h — the values an expression can take, and the effect of each op on them
#pragma once

#include <span>

#include "ir/op.h"

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

}  // namespace attune::ir

// ir/range.h — what each op does to intervals, and what a comparison tells about its operands
#pragma once

#include <array>
#include <vector>

#include "ir/node.h"

namespace attune::ir {

/// The values an expression can take: [lo, hi], and NaN if `nan`. Int within i32, Bool within [0, 1].
/// Float bounds hold for both precisions of eval: they are widened by what rounding and a library function may add.
/// Empty (lo > hi, no nan): the assumptions contradict each other.
struct Interval {
  double lo = 0, hi = 0;
  bool nan = false;

  static Interval all(Type type);
  static Interval point(double value);
  bool contains(double value) const;
  bool empty() const { return lo > hi && !nan; }
  bool is(double value) const { return lo == value && hi == value && !nan; }
  bool operator==(const Interval&) const = default;
};

/// What is known before an expression is looked at.
struct Bounds {
  std::array<Interval, input_count> inputs;  ///< coordinates and lengths are never negative
  std::vector<Interval> params;              ///< by slot; beyond the end: anything
  std::vector<Interval> captures;            ///< the values a captured tensor holds, likewise
  DigestMap<Interval> facts;                 ///< what is known of whole sub-expressions

  Bounds();
  Interval& operator[](Input which) { return inputs[static_cast<std::size_t>(which)]; }
  const Interval& operator[](Input which) const { return inputs[static_cast<std::size_t>(which)]; }
};

/// Ranges of expressions under fixed bounds; remembers what it has worked out.
/// `where(c, a, b)` uses c for a and !c for b when that is cheap (small conditions).
class Ranger {
 public:
  explicit Ranger(Bounds bounds) : bounds_(std::move(bounds)) {}
  Interval operator()(const Expr& e);
  const Bounds& bounds() const { return bounds_; }

 private:
  Interval of(const Node& n);
  Bounds bounds_;
  DigestMap<Interval> known_;
};

Interval range(const Expr& e, const Bounds& bounds = {});

/// The bounds narrowed by `condition` being `truth`: comparisons narrow both sides, and go down through + - neg abs
/// f32 and && (true) or || (false). Sound: whatever satisfies the condition is still within.
Bounds assume(const Expr& condition, bool truth, const Bounds& bounds);

}  // namespace attune::ir

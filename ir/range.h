// ir/range.h — the values an expression can take under known bounds, and the bounds a condition implies
#pragma once

#include <array>
#include <bit>
#include <span>
#include <vector>

#include "ir/interval.h"
#include "ir/node.h"

namespace attune::ir {

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

// runtime/engines/merge.h — infinity, and results over some keys merged with results over other keys
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace attune::runtime {

/// The maximum over no scores is -infinity.
inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// A row of a call, merged with another call's result for the same query and other keys.
struct Merged {
  double own = 1, before = 0;  ///< weights of the two outputs
  double lse = 0;              ///< of all keys
};

inline Merged merge(double own, double before) {
  const double top = std::isnan(before) || before > own ? before : own;
  // Neither call has a key: both outputs are 0.
  if (top == -infinity) return {1, 0, top};
  const double a = std::exp(own - top), b = std::exp(before - top), sum = a + b;
  return {a / sum, b / sum, top + std::log(sum)};
}

}  // namespace attune::runtime

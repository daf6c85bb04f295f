// tests/codegen/ulp.h — how far an f32 is from the truth
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace attune::tests {

/// In units of the last place of the f32 nearest to `truth`. Infinite where one is NaN and the other not, and for a 0
/// of the other sign; infinity counts as 2^128.
inline double ulps(float got, double truth) {
  if (std::isnan(got) || std::isnan(truth)) return std::isnan(got) && std::isnan(truth) ? 0 : HUGE_VAL;
  if (truth == 0 && got == 0) return std::signbit(truth) == std::signbit(got) ? 0 : HUGE_VAL;
  const auto finite = [](double x) { return std::isinf(x) ? std::copysign(0x1p128, x) : x; };
  // Beyond what f32 holds all truths are one.
  const double most = 0x1p128, exact = std::clamp(finite(truth), -most, most);
  const int exponent = std::clamp(exact == 0 ? -126 : std::ilogb(exact), -126, 127);
  return std::fabs(finite(got) - exact) / std::ldexp(1.0, exponent - 23);
}

}  // namespace attune::tests

// tests/codegen/ulp.h — the error of an f32, and the errors that are allowed
#pragma once

#include <algorithm>
#include <cmath>

#include "ir/op.h"

namespace attune::tests {

/// In units of the last place of the f32 nearest to `truth`. Infinite if only one of the two is NaN, or if they are
/// zeros of different signs. An infinity counts as 2^128.
inline double ulps(float got, double truth) {
  if (std::isnan(got) || std::isnan(truth)) return std::isnan(got) && std::isnan(truth) ? 0 : HUGE_VAL;
  if (truth == 0 && got == 0) return std::signbit(truth) == std::signbit(got) ? 0 : HUGE_VAL;
  const auto finite = [](double x) { return std::isinf(x) ? std::copysign(0x1p128, x) : x; };
  // All values beyond the range of f32 count as the same.
  const double most = 0x1p128, exact = std::clamp(finite(truth), -most, most);
  const int exponent = std::clamp(exact == 0 ? -126 : std::ilogb(exact), -126, 127);
  return std::fabs(finite(got) - exact) / std::ldexp(1.0, exponent - 23);
}

/// The errors that codegen/llvm/math.h states; 0 for operations that round as eval does.
inline double stated_ulps(ir::Op op) {
  switch (op) {
    case ir::Op::Exp2: return 1.1;
    case ir::Op::Exp: return 1.2;
    case ir::Op::Tanh: return 2.5;
    case ir::Op::Sigmoid: return 2.4;
    case ir::Op::Erf: return 1.7;
    case ir::Op::Log:
    case ir::Op::Log2:
    case ir::Op::Pow:
    case ir::Op::Sin:
    case ir::Op::Cos:
    case ir::Op::Tan: return 0.51;
    default: return 0;
  }
}

}  // namespace attune::tests

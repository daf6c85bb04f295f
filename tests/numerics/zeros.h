// tests/numerics/zeros.h — a score whose value and captured gradients depend on the sign of zeros
#pragma once

#include <attune/attune.h>

#include <algorithm>
#include <array>

namespace attune::tests {

/// Minima and maxima of zeros of both signs, of each of which a quotient shows the sign. Random mod 39059 found that
/// engines chose either.
inline Attention zeros_of_both_signs() {
  const auto of_row = Device::cpu().array<float>({4}), of_key = Device::cpu().array<float>({4});
  for (const auto* one : {&of_row, &of_key}) std::ranges::copy(std::array{0.0f, -0.0f, 1.0f, -1.0f}, one->data());
  return {.score = [of_row, of_key](Float s, At at) {
    const Float zero = 0.0f, minus_zero = -0.0f, x = of_row[at.q % 4], y = of_key[at.kv / 2 % 4];
    const auto sign = [](Float of) { return where(1.0f / of > 0.0f, Float(1.0f), Float(-1.0f)); };
    const Float unknown = sign(max(x, y)) + 0.5f * sign(min(x, y)) + 0.25f * sign(clamp(x, y, 0.0f * x));
    const Float of_max = sign(max(y, zero)) + 0.5f * sign(max(y, minus_zero)) + 0.25f * sign(max(minus_zero, y));
    const Float of_min = sign(min(y, minus_zero)) + 0.5f * sign(min(y, zero)) + 0.25f * sign(min(zero, y));
    // A tie passes its gradient to the first, whichever zero it is.
    const Float tied = max(x, y) - 0.5f * min(x, y) + 0.25f * clamp(x, y, 1.0f) + 0.125f * max(minus_zero, y);
    return s + unknown + of_max + of_min + tied;
  }};
}

}  // namespace attune::tests

// tests/codegen/exact.h — numbers that kernels must compute exactly, and memory around them that must not change
#pragma once

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "tests/catch.h"
#include "tests/codegen/kits.h"

namespace attune::tests {

/// Small whole numbers: sums of their products are exact in f32, so kernels must give exactly these.
inline double small(std::mt19937& random) { return std::uniform_int_distribution(-4, 4)(random); }

inline void fill_small(const Elements& elements, std::mt19937& random) {
  for (std::int64_t i = 0; i < elements.size(); ++i) elements.set(i, small(random));
}

/// Equal bit for bit, except that all NaNs are equal.
inline bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (std::isnan(a) && std::isnan(b)) ||
         (a == 0 && b == 0);
}

/// `got` equals `want` everywhere, in the gaps between rows too, and nothing before it was written.
inline void check_all(const Guarded<float>& got, const std::vector<float>& want) {
  std::size_t wrong = 0, first = 0;
  for (std::size_t i = want.size(); i-- > 0;)
    if (!same(got.data()[i], want[i])) first = i, ++wrong;
  INFO("first of " << wrong << " at " << first << ": " << got.data()[first] << ", not " << want[first]);
  CHECK(wrong == 0);
  CHECK(got.front_untouched());
}

inline std::vector<float> copy(const Guarded<float>& of) { return {of.begin(), of.end()}; }

}  // namespace attune::tests

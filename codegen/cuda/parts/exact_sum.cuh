// codegen/cuda/parts/exact_sum.cuh — exact sums of f32, whose bits do not depend on the order of additions
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

/// A sum is twelve words, each 24 bits above the one before, and one word of flags for non-finite terms. Words are
/// integers, so the order of additions does not matter; 2^39 terms fit. All words are 0 before the first term.
constexpr unsigned long long exact_nan = 1, exact_plus = 2, exact_minus = 4;

__device__ inline void add_exactly(unsigned long long* sum, float x) {
  const unsigned bits = __float_as_uint(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
  if (exponent == 255) {
    atomicOr(sum + exact_finite_words, fraction ? exact_nan : x > 0 ? exact_plus : exact_minus);
    return;
  }
  // x is the fraction, with its leading 1, times 2^(place - 149).
  const unsigned place = exponent ? exponent - 1 : 0;
  const unsigned long long wide = static_cast<unsigned long long>(exponent ? fraction | 0x800000 : fraction)
                                  << place % 24;
  unsigned long long low = wide & 0xffffff, high = wide >> 24;
  if (x < 0) low = 0 - low, high = 0 - high;
  if (low) atomicAdd(sum + place / 24, low);
  if (high) atomicAdd(sum + place / 24 + 1, high);
}

/// For all lanes of a warp at once: lanes with the same sum as the first lane add together, as one number in f32.
/// Clamped indices have most of a call's terms, and additions to one place wait for one another.
__device__ inline void add_together(unsigned long long* sum, float x) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto mine = reinterpret_cast<unsigned long long>(sum);
  const bool joins = mine == __shfl_sync(~0u, mine, 0);
  float joined = joins ? x : 0.0f;
#pragma unroll
  for (int i = 16; i > 0; i /= 2) joined += __shfl_xor_sync(~0u, joined, i);
  if (lane == 0 || !joins) add_exactly(sum, lane == 0 ? joined : x);
}

/// The sum, rounded to a double.
__device__ inline double exact_value(const unsigned long long* sum) {
  constexpr double infinity = __builtin_bit_cast(double, 0x7ff0000000000000ull);
  const unsigned long long flags = sum[exact_finite_words];
  if (flags) return flags == exact_plus ? infinity : flags == exact_minus ? -infinity : infinity - infinity;
  // Each word keeps 24 bits and carries the rest; the carry left on top has the sign of the sum.
  long long digits[exact_finite_words], carry = 0;
#pragma unroll
  for (int i = 0; i < exact_finite_words; ++i) {
    const long long word = static_cast<long long>(sum[i]) + carry;
    digits[i] = i + 1 < exact_finite_words ? word & 0xffffff : word;
    carry = word >> 24;
  }
  // From the top down, so that the error is in the last digits of a double.
  double value = 0, unit = 0x1p115;
#pragma unroll
  for (int i = exact_finite_words - 1; i >= 0; --i, unit *= 0x1p-24) value += static_cast<double>(digits[i]) * unit;
  return value;
}

}  // namespace attune

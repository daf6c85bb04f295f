// codegen/cuda/emulated/ptx/arithmetic.cuh — arithmetic on single numbers and on pairs of halves
#pragma once

#include "codegen/cuda/ptx/convert.cuh"

namespace attune {

inline void add_in_place(float& x, float y) { x += y; }

template <class T>
const T* further(const T* at, long long steps) {
  return at + steps;
}

inline unsigned copies_of_sign(unsigned x, int byte) { return x >> (8 * byte + 7) & 1 ? ~0u : 0; }

// A product of two halves is exact in f32, and nearly every sum is exact in f64: rounding twice changes no test.
inline unsigned fma_f16_pair(unsigned a, unsigned b, unsigned c) {
  const auto one = [](float x, float y, float z) { return __builtin_fmaf(x, y, z); };
  return f16_pair_of(one(f32_of_low_f16(a), f32_of_low_f16(b), f32_of_low_f16(c)),
                     one(f32_of_high_f16(a), f32_of_high_f16(b), f32_of_high_f16(c)));
}
inline unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c) {
  const auto low = [](unsigned x) { return __builtin_bit_cast(float, x << 16); };
  const auto high = [](unsigned x) { return __builtin_bit_cast(float, x & 0xffff0000u); };
  return bf16_pair_of(__builtin_fmaf(low(a), low(b), low(c)), __builtin_fmaf(high(a), high(b), high(c)));
}

}  // namespace attune

// codegen/cuda/emulated/ptx/arithmetic.cuh — arithmetic, functions of the special-function unit and conversions as the
// host computes them
#pragma once

#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

// ---- conversions: floating types other than f32 are given by their bits ---------------------------------------------

/// The bits of an f32 whose fraction lost `drop` bits, rounded to nearest even; NaN stays NaN.
inline unsigned bits_of_bf16(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
inline unsigned bits_of_f16(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return 0x7fff;
  if (size >= 0x477ff000u) return sign | 0x7c00;  // 65520 and above round to infinity
  if (size >= 0x38800000u) {                      // normal: from 2^-14 on
    const unsigned from_one = size - (112u << 23);
    return sign | (from_one + 0xfffu + (from_one >> 13 & 1)) >> 13;
  }
  if (size < 0x33000000u) return sign;  // below 2^-25
  const unsigned exponent = size >> 23, fraction = (size & 0x7fffffu) | 0x800000u, shift = 126 - exponent;
  const unsigned kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
  return sign | (kept + (rest > half || (rest == half && (kept & 1))));
}
inline float f32_of_f16(unsigned short x) {
  const unsigned sign = (x & 0x8000u) << 16, exponent = x >> 10 & 31, fraction = x & 0x3ffu;
  unsigned bits;
  if (exponent == 31)
    bits = 0x7f800000u | fraction << 13;
  else if (exponent > 0)
    bits = (exponent + 112) << 23 | fraction << 13;
  else
    bits = __builtin_bit_cast(unsigned, static_cast<float>(fraction) * 0x1p-24f);
  return __builtin_bit_cast(float, sign | bits);
}
inline unsigned bf16_pair_of(float low, float high) { return bits_of_bf16(low) | bits_of_bf16(high) << 16; }
inline unsigned f16_pair_of(float low, float high) { return bits_of_f16(low) | bits_of_f16(high) << 16; }

/// To nearest even; numbers beyond 448 become 448, and NaN stays NaN.
inline unsigned bits_of_e4m3(float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x), sign = bits >> 24 & 0x80u;
  const float size = __builtin_fabsf(x);
  if (x != x) return 0x7f;
  if (size >= 448.0f) return sign | 0x7e;
  if (size < 0x1p-6f) return sign | static_cast<unsigned>(__builtin_rintf(size * 0x1p9f));
  const unsigned from_one = __builtin_bit_cast(unsigned, size) - (120u << 23);
  return sign | (from_one + 0x7ffffu + (from_one >> 20 & 1)) >> 20;
}
inline unsigned pack_e4m3(float a, float b, float c, float d) {
  return bits_of_e4m3(a) | bits_of_e4m3(b) << 8 | bits_of_e4m3(c) << 16 | bits_of_e4m3(d) << 24;
}
inline unsigned tf32(unsigned x) {
  if ((x & 0x7f800000u) == 0x7f800000u) return x & 0xffffe000u | (x & 0x7fffffu ? 0x400000u : 0);
  return (x + 0x1000u) & 0xffffe000u;
}

inline float f32_of_low_f16(unsigned pair) { return f32_of_f16(static_cast<unsigned short>(pair)); }
inline float f32_of_high_f16(unsigned pair) { return f32_of_f16(static_cast<unsigned short>(pair >> 16)); }
inline unsigned f16_pair_of_e4m3(unsigned two) {
  const auto one = [](unsigned x) -> unsigned {
    const unsigned sign = (x & 0x80) << 8, size = x & 0x7f;
    if (size == 0x7f) return sign | 0x7fff;
    if (size < 8) return sign | bits_of_f16(static_cast<float>(size) * 0x1p-9f);
    return sign | ((size << 7) + (8u << 10));
  };
  return one(two & 0xff) | one(two >> 8 & 0xff) << 16;
}

inline double f64_of_f32(float x) { return attune_machine->f64_of_f32(x); }
inline float f32_of_f64(double x) { return attune_machine->f32_of_f64(x, false); }
inline float f32_of_f64_towards_zero(double x) { return attune_machine->f32_of_f64(x, true); }

// ---- arithmetic -----------------------------------------------------------------------------------------------------

inline void add_in_place(float& x, float y) { x += y; }

template <class T>
const T* further(const T* at, long long steps) {
  return at + steps;
}

inline unsigned long long wide_product(unsigned x, unsigned y) { return 1ull * x * y; }

inline unsigned copies_of_sign(unsigned x, int byte) { return x >> (8 * byte + 7) & 1 ? ~0u : 0; }
inline unsigned copies_of_signs(unsigned x, unsigned y, int byte) {
  return (copies_of_sign(x, byte) & 0xffffu) | copies_of_sign(y, byte) << 16;
}

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

// ---- the special-function unit, one instruction each; denormals count as 0 ------------------------------------------

inline float unit_flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }

inline float approx_sqrt(float x) { return __builtin_sqrtf(unit_flushed(x)); }
inline float approx_rsqrt(float x) {
  return static_cast<float>(1 / __builtin_sqrt(static_cast<double>(unit_flushed(x))));
}
inline float approx_reciprocal(float x) { return unit_flushed(1.0f / unit_flushed(x)); }
inline float approx_exp2(float x) { return unit_flushed(__builtin_exp2f(x)); }
inline float approx_log2(float x) { return __builtin_log2f(unit_flushed(x)); }
inline float approx_tanh(float x) { return __builtin_tanhf(x); }
inline float approx_sin(float x) { return __builtin_sinf(unit_flushed(x)); }
inline float approx_cos(float x) { return __builtin_cosf(unit_flushed(x)); }

}  // namespace attune

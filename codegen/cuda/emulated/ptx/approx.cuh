// codegen/cuda/emulated/ptx/approx.cuh — functions of the special-function unit, as the host computes them, in double
#pragma once

namespace attune {

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

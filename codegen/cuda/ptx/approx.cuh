// codegen/cuda/ptx/approx.cuh — functions of the special-function unit, one instruction each; denormals count as 0
#pragma once

namespace attune {

/// sqrt.approx: 1 ulp.
__device__ inline float approx_sqrt(float x) {
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// rsqrt.approx: 2^-22.9 of the result.
__device__ inline float approx_rsqrt(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// rcp.approx, 1 / x: 1 ulp.
__device__ inline float approx_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// ex2.approx, 2^x: 2^-22 of the result.
__device__ inline float approx_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// lg2.approx: 2^-22 between 0.5 and 2, elsewhere 2^-22 of the result.
__device__ inline float approx_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// tanh.approx: 2^-11 of the result. Denormals are not flushed.
__device__ inline float approx_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// sin.approx: 2^-20.5 for x from -pi to pi.
__device__ inline float approx_sin(float x) {
  float y;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// cos.approx: 2^-20.5 for x from -pi to pi.
__device__ inline float approx_cos(float x) {
  float y;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace attune

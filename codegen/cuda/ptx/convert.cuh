// codegen/cuda/ptx/convert.cuh — conversions between f32 and other floating types, which are given by their bits
#pragma once

namespace attune {

/// cvt.rn.bf16x2.f32: a pair, rounded to nearest even, `low` in the lower half.
__device__ inline unsigned bf16_pair_of(float low, float high) {
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// cvt.rn.f16x2.f32: a pair in the same way.
__device__ inline unsigned f16_pair_of(float low, float high) {
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
/// cvt.rn.satfinite.e4m3x2.f32 twice: four, rounded to nearest even, the first one lowest. Numbers beyond 448 become
/// 448.
__device__ inline unsigned pack_e4m3(float a, float b, float c, float d) {
  unsigned out;
  // The upper pair first: the instruction for the lower pair then merges it in.
  asm("{.reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 y, %4, %3; cvt.rn.satfinite.e4m3x2.f32 x, %2, %1; "
      "mov.b32 %0, {x, y};}"
      : "=r"(out)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return out;
}
/// cvt.rna.tf32.f32, of bits to bits: an f32 with 10 bits of fraction, halves away from 0.
__device__ inline unsigned tf32(unsigned x) {
  unsigned y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// cvt.f32.f16: exact.
__device__ inline float f32_of_f16(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
/// f32 of the lower half of a pair.
__device__ inline float f32_of_low_f16(unsigned pair) {
  float out;
  asm("{.reg .b16 x, y; mov.b32 {x, y}, %1; cvt.f32.f16 %0, x;}" : "=f"(out) : "r"(pair));
  return out;
}
/// f32 of the upper half.
__device__ inline float f32_of_high_f16(unsigned pair) {
  float out;
  asm("{.reg .b16 x, y; mov.b32 {x, y}, %1; cvt.f32.f16 %0, y;}" : "=f"(out) : "r"(pair));
  return out;
}
/// cvt.rn.f16x2.e4m3x2, since sm_89: the two e4m3 in the lower 16 bits as f16, exact.
__device__ inline unsigned f16_pair_of_e4m3(unsigned two) {
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(two)));
  return halves;
}

// Written as PTX: the compiler, when told to flush f32 denormals, would flush denormals here too.

/// cvt.f64.f32: exact.
__device__ inline double f64_of_f32(float x) {
  double out;
  asm("cvt.f64.f32 %0, %1;" : "=d"(out) : "f"(x));
  return out;
}
/// cvt.rn.f32.f64: rounded to nearest even.
__device__ inline float f32_of_f64(double x) {
  float out;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(out) : "d"(x));
  return out;
}
/// cvt.rz.f32.f64: rounded towards 0.
__device__ inline float f32_of_f64_towards_zero(double x) {
  float out;
  asm("cvt.rz.f32.f64 %0, %1;" : "=f"(out) : "d"(x));
  return out;
}

}  // namespace attune

// codegen/cuda/ptx/arithmetic.cuh — arithmetic that the compiler has no expression for or must not rearrange, functions
// of the special-function unit, conversions between floating types
#pragma once

namespace attune {

// ---- conversions: floating types other than f32 are given by their bits ---------------------------------------------

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

// ---- arithmetic -----------------------------------------------------------------------------------------------------

/// add.f32, x += y, in order with other such statements, and in x's own register.
__device__ inline void add_in_place(float& x, float y) { asm volatile("add.f32 %0, %0, %1;" : "+f"(x) : "f"(y)); }

/// mad.wide.s32, mad.lo.s64: the address of the element that is `steps` further. Only the assembler adds the two, so a
/// number of steps that it alone knows becomes part of the load; the compiler would add the steps to those of `at`.
template <class T>
__device__ inline const T* further(const T* at, int steps) {
  const T* out;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(out) : "r"(steps), "n"(int(sizeof(T))), "l"(at));
  return out;
}
template <class T>
__device__ inline const T* further(const T* at, long long steps) {
  const T* out;
  asm("mad.lo.s64 %0, %1, %2, %3;" : "=l"(out) : "l"(steps), "n"(int(sizeof(T))), "l"(at));
  return out;
}

/// mul.wide.u32: of `x * 1ull * y` the compiler makes a product of 64 bits, with an addition of 0.
__device__ inline unsigned long long wide_product(unsigned x, unsigned y) {
  unsigned long long out;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(out) : "r"(x), "r"(y));
  return out;
}

/// prmt.b32: 32 copies of the highest bit of a byte of x. (__byte_perm does not copy signs.)
__device__ inline unsigned copies_of_sign(unsigned x, int byte) {
  unsigned out;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(out) : "r"(x), "r"(0x8888 + 0x1111 * byte));
  return out;
}

/// prmt.b32: 16 copies of the highest bit of a byte of x, and above them 16 of that of the same byte of y.
__device__ inline unsigned copies_of_signs(unsigned x, unsigned y, int byte) {
  unsigned out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(x), "r"(y), "r"(0xcc88 + 0x1111 * byte));
  return out;
}

/// fma.rn.f16x2: a b + c of both halves, rounded once.
__device__ inline unsigned fma_f16_pair(unsigned a, unsigned b, unsigned c) {
  asm("fma.rn.f16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
}
/// fma.rn.bf16x2: the same for bf16.
__device__ inline unsigned fma_bf16_pair(unsigned a, unsigned b, unsigned c) {
  asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a) : "r"(b), "r"(c));
  return a;
}

// ---- the special-function unit, one instruction each; denormals count as 0 ------------------------------------------

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

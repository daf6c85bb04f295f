// codegen/cuda/companions/elements.cuh — rows of a tensor of any strides, and its elements of any stored type as
// doubles and back, with the bits that the host stores
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/types.cuh"

namespace attune {

/// The bits of a floating type: how many the fraction has, and the bits of infinity.
struct FloatBits {
  int fraction;
  unsigned infinity;
};
__device__ inline FloatBits bits_of(Stored type) {
  return type == Stored::f32   ? FloatBits{23, 0x7f800000u}
         : type == Stored::f16 ? FloatBits{10, ElementOf<f16>::infinity}
                               : FloatBits{7, ElementOf<bf16>::infinity};
}

constexpr unsigned long long wide_infinity = 0x7ffull << 52, wide_fraction = (1ull << 52) - 1;

/// A conversion instruction would not keep the bits of NaN.
__device__ inline double widened_nan(unsigned x, Stored type) {
  const FloatBits of = bits_of(type);
  const unsigned fraction = x & ((1u << of.fraction) - 1), sign = x & (of.infinity + (1u << of.fraction));
  return __longlong_as_double(static_cast<long long>((sign ? 1ull << 63 : 0) | wide_infinity | 1ull << 51 |
                                                     static_cast<unsigned long long>(fraction) << (52 - of.fraction)));
}
__device__ inline unsigned narrowed_nan(unsigned long long x, Stored type) {
  const FloatBits of = bits_of(type);
  return (x >> 63 ? of.infinity + (1u << of.fraction) : 0) | of.infinity | 1u << (of.fraction - 1) |
         static_cast<unsigned>((x & wide_fraction) >> (52 - of.fraction));
}

/// Rounds to the neighbour whose last bit is 1, so that a second rounding to fewer bits gives what one rounding would.
__device__ inline float narrowed_to_odd(double x) {
  const float out = f32_of_f64_towards_zero(x);
  return f64_of_f32(out) == x ? out : __uint_as_float(__float_as_uint(out) | 1);
}

/// Any stored element as a double.
__device__ inline double element(const void* row, long long i, Stored type) {
  if (type == Stored::f64) return static_cast<const double*>(row)[i];
  const unsigned x = type == Stored::f32 ? static_cast<const unsigned*>(row)[i]
                                         : static_cast<const unsigned short*>(row)[i];
  const FloatBits of = bits_of(type);
  const unsigned exponent = x & of.infinity, fraction = x & ((1u << of.fraction) - 1);
  if (exponent == of.infinity && fraction != 0) return widened_nan(x, type);
  return f64_of_f32(type == Stored::f32 ? __uint_as_float(x) : type == Stored::f16 ? low_of<f16>(x) : low_of<bf16>(x));
}
/// The nearest e4m3, ties to even, of a number that was rounded to odd. Numbers beyond 448 have none, and e4m3 has no
/// infinity.
__device__ inline unsigned e4m3_of(float odd) {
  const unsigned bits = __float_as_uint(odd), magnitude = ::min(bits & 0x7fffffffu, 0x43e00000u),
                 exponent = ::max(magnitude & 0x7f800000u, 0x3c800000u);  // at least that of 2^-6
  // Adding a power of two 20 binary places above the number rounds it to eighths.
  const unsigned above = exponent + (20u << 23),
                 eighths = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(above)) - above;
  return (bits >> 24 & 0x80) | (((exponent >> 23) - 121) * 8 + eighths);
}

__device__ inline void store(void* row, long long i, Stored type, double x) {
  if (type == Stored::f64) {
    static_cast<double*>(row)[i] = x;
    return;
  }
  const bool nan = x != x;
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  if (type == Stored::f32) {
    static_cast<unsigned*>(row)[i] = nan ? narrowed_nan(bits, type) : __float_as_uint(f32_of_f64(x));
    return;
  }
  const float odd = narrowed_to_odd(x);
  if (type == Stored::e4m3) {
    static_cast<unsigned char*>(row)[i] = static_cast<unsigned char>(nan ? (bits >> 63 ? 0x80 : 0) | 0x7f
                                                                         : e4m3_of(odd));
    return;
  }
  static_cast<unsigned short*>(row)[i] = static_cast<unsigned short>(nan                   ? narrowed_nan(bits, type)
                                                                     : type == Stored::f16 ? pack<f16>(odd, 0)
                                                                                           : pack<bf16>(odd, 0));
}

// ---- rows -----------------------------------------------------------------------------------------------------------

/// The row of this warp; blocks have rows_of_copy warps.
__device__ inline long long row_of_warp() {
  return static_cast<long long>(blockIdx.x) * rows_of_copy + threadIdx.x / 32;
}
__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

__device__ inline long long rows_of(const RowsArgs& args) { return args.extent[0] * args.extent[1] * args.extent[2]; }
__device__ inline long long row_at(const RowsArgs& args, const long long* stride, long long row) {
  const long long before = row / args.extent[2];
  return row % args.extent[2] * stride[2] + before % args.extent[1] * stride[1] + before / args.extent[1] * stride[0];
}

}  // namespace attune

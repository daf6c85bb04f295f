// codegen/cuda/contract/types.cuh — the narrow floats as kernels name them, how f32 become words of them; one type or
// another
#pragma once

namespace attune {

template <bool First, class A, class B>
struct EitherOf {
  using Type = A;
};
template <class A, class B>
struct EitherOf<false, A, B> {
  using Type = B;
};
template <bool First, class A, class B>
using Either = typename EitherOf<First, A, B>::Type;

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

/// Captured tensors may hold it; keys and values, beside q of another type; and all three.
struct e4m3 {
  unsigned char bits;
};

/// What kernels ask about the element type of q, k and v. A type that is not here does not compile.
template <class T>
struct ElementOf;
template <>
struct ElementOf<bf16> {
  static constexpr int bytes = 2;
  /// Powers of scores that have no running maximum may be as small as 2^-126. Where the type cannot hold them, as f16
  /// with its least number 2^-24 cannot, each row needs its maximum.
  static constexpr bool needs_maximum = false;
  static constexpr unsigned infinity = 0x7f80, one = 0x3f80, two = 0x4000;
};
template <>
struct ElementOf<f16> {
  static constexpr int bytes = 2;
  static constexpr bool needs_maximum = true;
  static constexpr unsigned infinity = 0x7c00, one = 0x3c00, two = 0x4000;
};
template <>
struct ElementOf<float> {
  static constexpr int bytes = 4;
  static constexpr bool needs_maximum = false;
  static constexpr unsigned infinity = 0x7f800000, one = 0x3f800000, two = 0x40000000;
};

template <>
struct ElementOf<e4m3> {
  static constexpr int bytes = 1;
  static constexpr bool needs_maximum = true;  // its least number is 2^-9
};

/// The copy engine swizzles chunks of 128 bytes a row.
constexpr int chunk_bytes = 128;
template <class T>
constexpr int chunk_columns = chunk_bytes / ElementOf<T>::bytes;

/// Two f32, rounded to nearest even, the first one in the lower half.
template <class T>
__device__ inline unsigned pack(float low, float high);
template <>
__device__ inline unsigned pack<bf16>(float low, float high) {
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <>
__device__ inline unsigned pack<f16>(float low, float high) {
  unsigned out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

/// Four f32 as e4m3, rounded to nearest even, the first one lowest. What is beyond 448 becomes 448.
__device__ inline unsigned pack_e4m3(float a, float b, float c, float d) {
  unsigned out;
  // The upper pair first: the conversion of the lower one then takes it in.
  asm("{.reg .b16 x, y; cvt.rn.satfinite.e4m3x2.f32 y, %4, %3; cvt.rn.satfinite.e4m3x2.f32 x, %2, %1; "
      "mov.b32 %0, {x, y};}"
      : "=r"(out)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return out;
}

/// The halves of such a pair.
template <class T>
__device__ inline float low_of(unsigned pair);
template <class T>
__device__ inline float high_of(unsigned pair);
template <>
__device__ inline float low_of<bf16>(unsigned pair) {
  return __uint_as_float(pair << 16);
}
template <>
__device__ inline float high_of<bf16>(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
template <>
__device__ inline float low_of<f16>(unsigned pair) {
  float out;
  asm("{.reg .b16 x, y; mov.b32 {x, y}, %1; cvt.f32.f16 %0, x;}" : "=f"(out) : "r"(pair));
  return out;
}
template <>
__device__ inline float high_of<f16>(unsigned pair) {
  float out;
  asm("{.reg .b16 x, y; mov.b32 {x, y}, %1; cvt.f32.f16 %0, y;}" : "=f"(out) : "r"(pair));
  return out;
}

}  // namespace attune

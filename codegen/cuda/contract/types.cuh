// codegen/cuda/contract/types.cuh — the narrow floats as kernels name them, how f32 become words of them; one type or
// another
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

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

/// The type of captured tensors; of keys and values next to another q; or of q, k and v.
struct e4m3 {
  unsigned char bits;
};

/// What kernels need of the element type of q, k and v. Other types do not compile.
template <class T>
struct ElementOf;
template <>
struct ElementOf<bf16> {
  static constexpr int bytes = 2;
  /// Powers of scores without a running maximum may be as small as 2^-126. If the type cannot hold such numbers, like
  /// f16, whose least number is 2^-24, each row needs its maximum.
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
  static constexpr bool needs_maximum = true;  // the least number of e4m3 is 2^-9
};

template <class T>
constexpr int chunk_columns = chunk_bytes / ElementOf<T>::bytes;

/// Two f32, rounded to nearest even, the first one in the lower half.
template <class T>
__device__ inline unsigned pack(float low, float high);
template <>
__device__ inline unsigned pack<bf16>(float low, float high) {
  return bf16_pair_of(low, high);
}
template <>
__device__ inline unsigned pack<f16>(float low, float high) {
  return f16_pair_of(low, high);
}

/// The two halves of such a pair.
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
  return f32_of_low_f16(pair);
}
template <>
__device__ inline float high_of<f16>(unsigned pair) {
  return f32_of_high_f16(pair);
}

}  // namespace attune

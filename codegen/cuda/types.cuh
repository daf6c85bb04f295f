// codegen/cuda/types.cuh — the 16-bit floats as kernels name them, and how two f32 become a pair of them
#pragma once

namespace attune {

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

template <class T, class U>
constexpr bool same = false;
template <class T>
constexpr bool same<T, T> = true;

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

/// sum += 0 x, for each of two: stays 0 while no x is infinite or NaN.
template <class T>
__device__ inline void add_zero_times(unsigned& sum, unsigned x);
template <>
__device__ inline void add_zero_times<bf16>(unsigned& sum, unsigned x) {
  asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
}
template <>
__device__ inline void add_zero_times<f16>(unsigned& sum, unsigned x) {
  asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
}

}  // namespace attune

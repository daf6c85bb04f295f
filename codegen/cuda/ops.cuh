// codegen/cuda/ops.cuh — one function per op that is not a C++ operator
#pragma once

namespace attune {

__device__ inline int min(int a, int b) { return a < b ? a : b; }
__device__ inline int max(int a, int b) { return a > b ? a : b; }

/// A position of an unrolled loop: `step` is a constant once the loop is unrolled, so that what is linear in positions
/// has one part that is computed once and one that costs nothing.
struct Step {
  int base, step;
  __device__ operator int() const { return base + step; }
};
__device__ inline Step operator+(Step a, Step b) { return {a.base + b.base, a.step + b.step}; }
__device__ inline Step operator-(Step a, Step b) { return {a.base - b.base, a.step - b.step}; }
__device__ inline Step operator+(Step a, int b) { return {a.base + b, a.step}; }
__device__ inline Step operator-(Step a, int b) { return {a.base - b, a.step}; }
__device__ inline Step operator+(int a, Step b) { return {a + b.base, b.step}; }
__device__ inline Step operator-(int a, Step b) { return {a - b.base, -b.step}; }
__device__ inline bool operator<(Step a, Step b) { return a.base - b.base < b.step - a.step; }
__device__ inline bool operator<=(Step a, Step b) { return a.base - b.base <= b.step - a.step; }
__device__ inline bool operator>(Step a, Step b) { return b < a; }
__device__ inline bool operator>=(Step a, Step b) { return b <= a; }
__device__ inline bool operator<(Step a, int b) { return a.base - b < -a.step; }
__device__ inline bool operator<=(Step a, int b) { return a.base - b <= -a.step; }
/// A Step as a float: exact as long as its parts are.
struct Slope {
  float base, step;
  __device__ operator float() const { return base + step; }
};
__device__ inline Slope f32(Step a) { return {static_cast<float>(a.base), static_cast<float>(a.step)}; }
__device__ inline float operator*(float a, Slope b) { return a * b.base + a * b.step; }
__device__ inline float operator*(Slope a, float b) { return b * a; }

}  // namespace attune

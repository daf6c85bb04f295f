// codegen/cuda/parts/multiply_sm80.cuh — a warp's product of any element type; f32 takes one product of TF32 or three
#pragma once

#include "codegen/cuda/ptx/arithmetic.cuh"
#include "codegen/cuda/ptx/mma.cuh"

namespace attune {

/// The remainder that tf32() cut off, rounded to TF32: together the two have 21 bits of fraction.
__device__ inline unsigned tf32_rest(unsigned x) {
  return tf32(__float_as_uint(__uint_as_float(x) - __uint_as_float(tf32(x))));
}

/// product() of operands as stored in shared memory. Exact: f32 keeps all but the last bits. `low` sums the products
/// with remainders separately, because the remainder of an infinity is NaN.
template <class Element, bool Exact>
__device__ inline void multiply(float (&c)[4], float (&low)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (ElementOf<Element>::bytes == 2) {
    product<Element>(c, a, b0, b1);
  } else {
    const unsigned high[4] = {tf32(a[0]), tf32(a[1]), tf32(a[2]), tf32(a[3])}, b[2] = {tf32(b0), tf32(b1)};
    if constexpr (Exact) {
      const unsigned rest[4] = {tf32_rest(a[0]), tf32_rest(a[1]), tf32_rest(a[2]), tf32_rest(a[3])};
      product<float>(low, rest, b[0], b[1]);
      product<float>(low, high, tf32_rest(b0), tf32_rest(b1));
    }
    product<float>(c, high, b[0], b[1]);
  }
}

}  // namespace attune

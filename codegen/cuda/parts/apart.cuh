// codegen/cuda/parts/apart.cuh — operands split into finite numbers, infinities and NaN
#pragma once

#include "codegen/cuda/contract/types.cuh"

namespace attune {

/// An operand split in three: its finite numbers; the signs of its infinities, as 1 or -1, 0 for NaN; and a count, 1
/// for an infinity, 2 for NaN, which counts as both infinities.
struct Apart {
  unsigned finite, sign, much;
};
template <class Element>
__device__ inline Apart apart(unsigned x) {
  using Of = ElementOf<Element>;
  if constexpr (Of::bytes == 4) {
    const bool odd = (x & Of::infinity) == Of::infinity, nan = odd && (x & 0x007fffffu);
    return {odd ? 0u : x, odd && !nan ? Of::one | (x & 0x80000000u) : 0u, nan ? Of::two : odd ? Of::one : 0u};
  } else {
    constexpr unsigned exponent = Of::infinity, fraction = 0x7fff - exponent;
    Apart out{};
#pragma unroll
    for (int i = 0; i < 32; i += 16) {
      const unsigned half = x >> i & 0xffffu;
      const bool odd = (half & exponent) == exponent, nan = odd && (half & fraction);
      out.finite |= (odd ? 0u : half) << i;
      out.sign |= (odd && !nan ? Of::one | (half & 0x8000u) : 0u) << i;
      out.much |= (nan ? Of::two : odd ? Of::one : 0u) << i;
    }
    return out;
  }
}

}  // namespace attune

// codegen/cuda/apart.cuh — operands whose infinities and NaN are kept apart from what is finite
#pragma once

#include "mma.cuh"

namespace attune {

/// An operand's registers apart: what is finite of them; for what is not, 1 with its sign, 0 of NaN; and how much of
/// both infinities: 1, 2 of NaN.
struct Apart {
  unsigned finite, sign, much;
};
template <class Element>
__device__ inline Apart apart(unsigned x) {
  if constexpr (sizeof(Element) == 4) {
    const bool odd = (x & 0x7f800000u) == 0x7f800000u, nan = odd && (x & 0x007fffffu);
    return {odd ? 0u : x, odd && !nan ? 0x3f800000u | (x & 0x80000000u) : 0u,
            nan   ? 0x40000000u
            : odd ? 0x3f800000u
                  : 0u};
  } else {
    constexpr bool wide = same<Element, bf16>;
    constexpr unsigned exponent = wide ? 0x7f80 : 0x7c00, fraction = 0x7fff - exponent, one = wide ? 0x3f80 : 0x3c00,
                       two = 0x4000;
    Apart out{};
#pragma unroll
    for (int i = 0; i < 32; i += 16) {
      const unsigned half = x >> i & 0xffffu;
      const bool odd = (half & exponent) == exponent, nan = odd && (half & fraction);
      out.finite |= (odd ? 0u : half) << i;
      out.sign |= (odd && !nan ? one | (half & 0x8000u) : 0u) << i;
      out.much |= (nan ? two : odd ? one : 0u) << i;
    }
    return out;
  }
}

}  // namespace attune

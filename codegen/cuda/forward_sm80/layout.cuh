// codegen/cuda/forward_sm80/layout.cuh — the shared memory of a block of forward_sm80.cuh, in bytes
#pragma once

namespace attune {

struct ForwardLayout80 {
  int m, n, d, dv, stages, element, out_element;  ///< as in Tile; bytes of an element of q, k, v and of o
  int q_bytes = m * d * element, k_bytes = n * d * element, v_bytes = n * dv * element, o_bytes = m * dv * out_element;
  int q = 0, k = q_bytes, v = k + stages * k_bytes, tiles = v + stages * v_bytes;
  // Results pass through the same memory in the epilogue.
  int bytes = tiles > o_bytes ? tiles : o_bytes;
};

}  // namespace attune

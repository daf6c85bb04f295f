// codegen/cuda/backward_sm80/keys_layout.cuh — the shared memory of a block of keys_sm80.cuh, in bytes
#pragma once

namespace attune {

struct KeysLayout80 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int k_bytes = n * d * element, v_bytes = n * dv * element, q_bytes = m * d * element, grad_o_bytes = m * dv * element;
  int end_bytes = 16, ends_bytes = m * end_bytes;
  int k = 0, v = k + k_bytes, q = v + v_bytes, grad_o = q + stages * q_bytes, ends = grad_o + stages * grad_o_bytes,
      bytes = ends + stages * ends_bytes;
};

}  // namespace attune

// codegen/cuda/backward_sm80/layout.cuh — the shared memory of blocks of keys_sm80.cuh and queries_sm80.cuh, in bytes
#pragma once

namespace attune {

struct KeysLayout80 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int k_bytes = n * d * element, v_bytes = n * dv * element, q_bytes = m * d * element, grad_o_bytes = m * dv * element;
  int end_bytes = 16, ends_bytes = m * end_bytes;
  int k = 0, v = k + k_bytes, q = v + v_bytes, grad_o = q + stages * q_bytes, ends = grad_o + stages * grad_o_bytes,
      bytes = ends + stages * ends_bytes;
};

struct QueriesLayout80 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int q_bytes = m * d * element, grad_o_bytes = m * dv * element, k_bytes = n * d * element, v_bytes = n * dv * element;
  int q = 0, grad_o = q + q_bytes, k = grad_o + grad_o_bytes, v = k + stages * k_bytes, bytes = v + stages * v_bytes;
};

}  // namespace attune

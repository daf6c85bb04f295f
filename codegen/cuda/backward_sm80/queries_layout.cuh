// codegen/cuda/backward_sm80/queries_layout.cuh — the shared memory of a block of queries_sm80.cuh, in bytes
#pragma once

namespace attune {

struct QueriesLayout80 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int q_bytes = m * d * element, grad_o_bytes = m * dv * element, k_bytes = n * d * element, v_bytes = n * dv * element;
  int q = 0, grad_o = q + q_bytes, k = grad_o + grad_o_bytes, v = k + stages * k_bytes, bytes = v + stages * v_bytes;
};

}  // namespace attune

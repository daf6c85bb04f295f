// codegen/cuda/backward_wide_sm90/queries_layout.cuh — the shared memory of a block of queries_sm90.cuh, in bytes
#pragma once

#include "codegen/cuda/contract/chunks.cuh"

namespace attune {

struct QueriesLayout90 {
  int m, n, d, dv, stages, v_stages, element;  ///< as in Tile; bytes of an element
  int results = 0;                             ///< the least bytes of queries, over which results pass
  int chunk = chunk_bytes / element, d_chunks = (d + chunk - 1) / chunk, dv_chunks = (dv + chunk - 1) / chunk;
  int q_bytes = d_chunks * m * chunk_bytes, grad_o_bytes = dv_chunks * m * chunk_bytes,
      k_bytes = d_chunks * n * chunk_bytes, v_bytes = dv_chunks * n * chunk_bytes;
  int q = 0, grad_o = q + (q_bytes < results ? results : q_bytes), k = grad_o + grad_o_bytes, v = k + stages * k_bytes;
  // Two barriers per stage of keys and values: full, then empty.
  int q_full = v + v_stages * v_bytes, grad_o_full = q_full + 8, k_full = grad_o_full + 8,
      v_full = k_full + 16 * stages, bytes = v_full + 16 * v_stages;
};

}  // namespace attune

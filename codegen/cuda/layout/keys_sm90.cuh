// codegen/cuda/layout/keys_sm90.cuh — the shared memory of a block of kernels/keys_sm90.cuh, in bytes
#pragma once

#include "codegen/cuda/layout/chunks.cuh"

namespace attune {

struct KeysLayout90 {
  int m, n, d, dv, stages, element;  ///< as Tile has them; bytes of an element
  int grad_o_stages = 2, warps = 4;
  int chunk = chunk_bytes / element, d_chunks = (d + chunk - 1) / chunk, dv_chunks = (dv + chunk - 1) / chunk;
  int k_bytes = d_chunks * n * chunk_bytes, v_bytes = dv_chunks * n * chunk_bytes, q_bytes = d_chunks * m * chunk_bytes,
      grad_o_bytes = dv_chunks * m * chunk_bytes;
  // The first chunk of the keys comes where the last stage of queries will be, and stays in registers.
  int held_bytes = n * chunk_bytes, v = 0, k = v + v_bytes, q = k + k_bytes - held_bytes,
      held = q + (stages - 1) * q_bytes, grad_o = q + stages * q_bytes, weights = grad_o + grad_o_stages * grad_o_bytes,
      under = weights + 2 * m * n, delta = under + 4 * m * stages, words = delta + 4 * m * grad_o_stages;
  // Of a step: which tile of queries, of which batch entry and head, and whether all its pairs stay. Then how many
  // steps there are, for each group.
  int step_words = 4, steps = words + 4 * step_words * stages;
  // Two barriers for each stage, and for each warp that hands weights over: full, then empty.
  int q_full = steps + 16, grad_o_full = q_full + 16 * stages, weights_full = grad_o_full + 16 * grad_o_stages,
      k_full = weights_full + 16 * warps, v_full = k_full + 8, k_held = v_full + 8, bytes = k_held + 8;
};

}  // namespace attune

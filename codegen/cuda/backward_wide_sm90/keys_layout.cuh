// codegen/cuda/backward_wide_sm90/keys_layout.cuh — the shared memory of a block of keys_sm90.cuh, in bytes
#pragma once

#include "codegen/cuda/contract/chunks.cuh"

namespace attune {

struct KeysLayout90 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int grad_o_stages = 2, warps = 4;
  int weight = 2;       ///< bytes of a weight that the first warpgroup hands to the second
  int held_chunks = 1;  ///< 1 if the first chunk of the keys loads into the last stage of queries, and is then held
  int row_factors = 0;  ///< f32 of a row of queries besides its lse or delta, in each stage of queries and of grad_o
  int results = 0;      ///< the least bytes of keys and of values, over which results pass
  int chunk = chunk_bytes / element, d_chunks = (d + chunk - 1) / chunk, dv_chunks = (dv + chunk - 1) / chunk;
  int k_bytes = d_chunks * n * chunk_bytes, v_bytes = dv_chunks * n * chunk_bytes, q_bytes = d_chunks * m * chunk_bytes,
      grad_o_bytes = dv_chunks * m * chunk_bytes;
  // The first chunk of the keys may load into the last stage of queries, from where it moves to registers.
  int held_bytes = held_chunks * n * chunk_bytes, v = 0, k = v + (v_bytes < results ? results : v_bytes),
      q = k + (k_bytes < results ? results : k_bytes) - held_bytes, held = q + (stages - 1) * q_bytes,
      grad_o = q + stages * q_bytes, weights = grad_o + grad_o_stages * grad_o_bytes, under = weights + weight * m * n,
      delta = under + 4 * m * stages, q_factors = delta + 4 * m * grad_o_stages,
      grad_o_factors = q_factors + 4 * row_factors * m * stages,
      words = grad_o_factors + 4 * row_factors * m * grad_o_stages;
  // Per step: the tile of queries, the batch entry, the head, and whether no pair is masked out. Then the number of
  // steps, for each warpgroup.
  int step_words = 4, steps = words + 4 * step_words * stages;
  // Two barriers per stage, and per warp that hands weights over: full, then empty.
  int q_full = steps + 16, grad_o_full = q_full + 16 * stages, weights_full = grad_o_full + 16 * grad_o_stages,
      k_full = weights_full + 16 * warps, v_full = k_full + 8, k_held = v_full + 8, bytes = k_held + 8;
};

}  // namespace attune

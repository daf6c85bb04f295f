// codegen/cuda/backward_wide_sm90/layout.cuh — the shared memory of blocks of keys_sm90.cuh, queries_sm90.cuh and their
// kernels of f32, in bytes
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

/// A block of any of these kernels.
constexpr Block90 wide_block{};

struct KeysLayout90 {
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  int grad_o_stages = 2, warps = 4;
  int weight = 2;        ///< bytes of a weight that the first warpgroup hands to the second
  int held_chunks = 1;   ///< 1 if the first chunk of the keys loads into the last stage of queries, and is then held
  int kept_words = 128;  ///< words of dropout's decisions that the first warpgroup hands to the second
  int row_factors = 0;   ///< f32 of a row of queries besides its lse or delta, in each stage of queries and of grad_o
  int results = 0;       ///< the least bytes of keys and of values, over which results pass
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
      k_full = weights_full + 16 * warps, v_full = k_full + 8, k_held = v_full + 8, kept = k_held + 8,
      bytes = kept + 4 * kept_words;
};

/// `d`, `dv`: columns of all parts of a row. Weights are f32, rows of queries have a factor of q and one of grad_o.
/// The memory of keys must hold 64 columns of f32 results, and so must that of values.
constexpr KeysLayout90 keys_layout_f32(int m, int n, int d, int dv, int stages) {
  return {.m = m,
          .n = n,
          .d = d,
          .dv = dv,
          .stages = stages,
          .element = 2,
          .weight = 4,
          .held_chunks = 0,
          .kept_words = 0,
          .row_factors = 2,
          .results = 4 * 64 * n};
}

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

/// `d`, `dv`: columns of all parts of a row. The memory of queries must hold 64 columns of f32 results.
constexpr QueriesLayout90 queries_layout_f32(int m, int n, int d, int dv, int stages, int v_stages) {
  return {
      .m = m, .n = n, .d = d, .dv = dv, .stages = stages, .v_stages = v_stages, .element = 2, .results = 4 * 64 * m};
}

}  // namespace attune

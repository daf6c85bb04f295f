// codegen/cuda/backward_sm90/layout.cuh — the shared memory of a block of backward_sm90.cuh, in bytes
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/schedule.cuh"

namespace attune {

struct BackwardLayout90 {
  /// narrow: warps that load need few registers, and so do four that sum diagonals.
  static constexpr Block90 block{}, narrow{.loading = 24, .computing = 240},
      summing{.loading = 24, .computing = 232, .helping = 24};
  int m, n, d, dv, stages, element;  ///< as in Tile; bytes of an element
  bool wide = false;                 ///< 32 bits are copied for each pair, of f32 or of two tensors
  int step_words = 12, steps_kept = 8;
  int chunk = chunk_bytes / element, d_chunks = (d + chunk - 1) / chunk, dv_chunks = (dv + chunk - 1) / chunk;
  int k_bytes = d_chunks * n * chunk_bytes, v_bytes = dv_chunks * n * chunk_bytes, q_bytes = d_chunks * m * chunk_bytes,
      grad_o_bytes = dv_chunks * m * chunk_bytes, ds_bytes = n / chunk * m * chunk_bytes,
      sum_bytes = 4 * m * d_chunks * chunk;
  bool turned = m == turned_queries;
  /// Memory for one tile of dQ only, if it is turned, or copies are wide.
  int sum_stages = turned || wide ? 1 : stages;
  /// Places for the wider half of copies: of each stage if tiles are small, else of one.
  int copied_stages = m > 64 ? 1 : stages;
  int k = 0, v = k + k_bytes, q = v + v_bytes, grad_o = q + stages * q_bytes, ds = grad_o + stages * grad_o_bytes,
      sums = ds + stages * ds_bytes, copied = sums + sum_stages * sum_bytes,
      under = copied + (wide ? copied_stages * ds_bytes : 0), delta = under + 4 * m * stages,
      steps = delta + 4 * m * stages;
  // One barrier per kept step: its words have been written. Two per stage: full, then empty.
  int known = steps + 4 * step_words * steps_kept, full = known + 8 * steps_kept, sum_full = full + 16 * stages,
      k_full = sum_full + 16 * stages, v_full = k_full + 8, keys_empty = v_full + 8;
  // For the warps that sum diagonals: full and empty for each buffer of dS. in_eights: a word, 1 if dK and dV can be
  // stored 8 elements at a time.
  int ds_full = keys_empty + 8, in_eights = ds_full + 16 * stages, bytes = in_eights + 8;
  // For a warp that copies into the memory of dS, in kernels without diagonals: an item's results have left it. And if
  // stages share the place of the wider half of copies, that this has been read.
  int results_empty = ds_full, copied_empty = ds_full + 8;
};

}  // namespace attune

// codegen/cuda/mla_sm90/layout.cuh — the shared memory of a block of mla_sm90.cuh, in bytes
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

struct MlaLayout90 {
  static constexpr Block90 block{.loading = 24, .computing = 240};
  int m, n, d, dv, stages, element;                   ///< as in Tile; bytes of an element
  int number = 4, split_bytes = 32, item_bytes = 96;  ///< bytes of an f32, of a SplitRange and of an MlaItem
  int chunk = chunk_bytes / element, chunks = d / chunk, v_chunks = dv / chunk, half_chunks = v_chunks / 2;
  int chunk_size = n * chunk_bytes, stage_bytes = chunks * chunk_size, q_bytes = chunks * m * chunk_bytes,
      p_bytes = m * chunk_bytes, row_numbers = m * number;
  int q = 0, keys = q_bytes, p = keys + stages * stage_bytes;
  // The maxima that each warpgroup's last probabilities are relative to; each warpgroup's sums, of this tile and of the
  // previous one.
  int tops = p + p_bytes, sums = tops + 2 * row_numbers, split = sums + 4 * row_numbers;
  // Items, of this tile of queries and the next one.
  int items = split + split_bytes, q_full = items + 2 * item_bytes, q_empty = q_full + 8;
  // Per stage: one barrier per chunk that arrives, and three for what has been used: the columns of each warpgroup, and
  // the columns that are no values.
  int stage_barriers = q_empty + 8, of_stage = 8 * (chunks + 3), bytes = stage_barriers + stages * of_stage;
};

}  // namespace attune

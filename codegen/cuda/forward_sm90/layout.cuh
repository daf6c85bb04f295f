// codegen/cuda/forward_sm90/layout.cuh — the shared memory of a block of Hopper's forward kernels, in bytes
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

/// `blocks`: of an SM. `drawn`: a warpgroup draws dropout's decisions. Places of keys take registers of threads that
/// load: with 40, a tail of values spills, and consumers lose nothing.
constexpr Block90 forward_block90(int m, int blocks = 1, bool per_entry = false, bool drawn = false) {
  return {.consumers = m / 64,
          .loading = drawn                     ? (per_entry ? 56 : 32)
                     : per_entry && blocks < 3 ? 56
                     : m == 192 || blocks == 3 ? 32
                                               : 40,
          .computing = drawn         ? (per_entry ? 200 : 216)
                       : m == 192    ? (per_entry ? 152 : 160)
                       : blocks == 1 ? (per_entry ? 224 : 232)
                       : blocks == 2 ? (per_entry ? 200 : 216)
                                     : 128,
          .helping = !drawn      ? 0
                     : per_entry ? 56
                                 : 48};
}

struct ForwardLayout90 {
  /// As in Tile; `element`, `out_element`: bytes of an element of q, k and v, and of o.
  int m, n, d, dv, stages, q_stages, element, out_element;
  int own_o;
  /// FP8 and f32 values lie transposed where products read them (`v`): a previous kernel has transposed them, or this
  /// one does, from where TMA loads them (`loaded`). Other values load into `v` directly.
  bool comes_transposed, transposes_values;
  /// Captured tensors whose elements for the pairs of two tiles of keys are here, 16 bits each; of one tile if there is
  /// no room for two.
  int copies = 0;
  /// f32 for the distances within a tile.
  bool distances = false;
  /// Words that the scores need for each column of a tile, see numbers.cuh.
  int column_words = 0;
  /// Words of dropout's decisions on the pairs of a tile, see numbers.cuh.
  bool drawn = false;
  /// Tiles of queries that are scheduled ahead of the warps that need them.
  int items = 1;
  /// Entries have their own lengths and positions: each item says them.
  bool per_entry = false;
  /// Numbers of TF32 that each f32 of k or v is split into. A stage holds a tile of the first, then one of the second.
  int parts = 1;

  int d_chunks = (d * element + chunk_bytes - 1) / chunk_bytes,
      dv_chunks = (dv * element + chunk_bytes - 1) / chunk_bytes,
      n_chunks = (n * element + chunk_bytes - 1) / chunk_bytes,
      o_chunks = (dv * out_element + chunk_bytes - 1) / chunk_bytes;
  // Results of f32 leave from registers.
  int q_bytes = d_chunks * m * chunk_bytes, k_bytes = parts * d_chunks * n * chunk_bytes,
      o_bytes = out_element == 4 ? 0 : o_chunks * m * chunk_bytes;
  int transposed_rows = n_chunks * dv, transposed_bytes = transposed_rows * chunk_bytes,
      loaded_bytes = comes_transposed ? parts * transposed_bytes : dv_chunks * n * chunk_bytes,
      v_bytes = transposes_values ? transposed_bytes : loaded_bytes;
  // Results without their own memory overwrite the queries, or values.
  int queries_bytes = own_o || q_stages * q_bytes > o_bytes ? q_stages* q_bytes : o_bytes;
  int q = 0, k = q + queries_bytes, v = k + stages * k_bytes, behind_v = v + stages * v_bytes,
      loaded = transposes_values ? behind_v : v,
      behind_loaded = behind_v + (transposes_values ? stages * loaded_bytes : 0), o = own_o == 1 ? behind_loaded : q,
      copied = behind_loaded + (own_o == 1 ? o_bytes : 0);
  // Each warp has its rows of a tile, in chunks of 64 columns, tensor after tensor. Of 227 KB, barriers, items and
  // lists take less than 3.
  int copied_tensor = (n + 63) / 64 * 16 * chunk_bytes, copied_warp = copies * copied_tensor,
      copied_bytes = m / 16 * copied_warp, copied_places = copied + 2 * copied_bytes > 224 * 1024 ? 1 : 2,
      numbers = copied + copied_places * copied_bytes;
  // m + n - 1 numbers, twice, in different banks.
  int distant_copy = distances ? (m + n - 1 + 63) / 64 * 256 + 64 : 0;
  // The columns of each of four lanes, whose lines begin in different banks, and a maximum for each warp. Numbers are
  // found while those of stages + 1 tiles may still be read.
  int columns_line = column_words ? (column_words * n + 127) / 128 * 128 + 16 : 0, columns_most = 4 * columns_line,
      drawn_bytes = drawn ? (n + 31) / 32 * m * 4 : 0,
      numbers_bytes = column_words ? columns_most + 16
                      : drawn      ? drawn_bytes
                                   : 2 * distant_copy,
      barriers = numbers + 2 * stages * numbers_bytes;
  // Two barriers for each stage of queries, keys and values: full, then empty.
  int q_full = barriers, k_full = q_full + 16 * q_stages, v_full = k_full + 16 * stages,
      behind_v_full = v_full + 16 * stages, loaded_full = transposes_values ? behind_v_full : v_full;
  int item_bytes = per_entry ? 80 : 64, item_full = behind_v_full + (transposes_values ? 16 * stages : 0),
      known = item_full + 16 * items, list_full = known + 8, results_left = known + 16,
      item = known + (own_o == 2 ? 32 : 16);
  // Lists of tiles to recompute: for each warp a count, then the tiles.
  int warps = m / 16, recompute_most = 31, recompute = item + item_bytes * items,
      behind_recompute = recompute + 4 * (recompute_most + 1) * warps;
  // The barrier at which the values of the tile with the last key arrive; the rows after that key are then cleared.
  int tail = behind_recompute, bytes = tail + (per_entry ? 16 : 0);
};

}  // namespace attune

// codegen/cuda/args.cuh — what a launch hands to a kernel; the host fills the same structs, so only C++ is used here
#pragma once

namespace attune {

/// A CUtensorMap, opaque.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

/// A tensor of a call, strides in elements: [batch, head, position, d]; packed ones have no batch (stride 0).
struct Strided {
  void* data;
  long long batch, head, position;
  long long element = 1;
};

/// Rows of lse or max: [batch, head, position]. Null: not asked for.
struct Rows {
  float* data;
  long long batch, head, position;
};

struct ForwardArgs {
  TensorMap q_map, k_map, v_map, o_map;  ///< for kernels that use the copy engine
  Strided q, k, v, o;
  Rows lse, max;
  int batch, q_heads, group;  ///< group: query heads of a key head
  int q_len, kv_len;          ///< packed: of the longest sequence
  int d, dv;
  int q_offset;
  int kv_shared;        ///< k and v have one batch entry for all
  const int* q_starts;  ///< packed: batch + 1 starts of each, else null
  const int* kv_starts;
  const int* order;  ///< packed, persistent kernels: the sequence and tile of each tile of queries of a set; null where
                     ///< the host does not know the starts
  int order_count;   ///< places for such tiles; without an order, q's positions / queries of a tile + batch
  const int* tiles;  ///< lists of a listed Mod, see cover.cuh: per row of tiles, how many partial and full, then which
  int tile_stride;   ///< ints a row, four more than the longest list, because lists are read ahead
  int tile_batches, tile_heads;  ///< 1 where the lists do not vary with them
  int section;                   ///< sets of heads (walk.cuh) whose keys and values stay in the cache together
  unsigned* next;                ///< the next tile of a dynamic schedule, 0 before the launch; null: a tile a block
};

}  // namespace attune

// codegen/cuda/cover_args.cuh — what a launch hands to cover.cuh; the host fills the same struct
#pragma once

namespace attune {

/// Threads of a block. A warp has few tiles, because a verdict takes a microsecond, mostly the latency of its reads.
constexpr int cover_threads = 1024;

/// The grid is (tiles of queries, or of keys, heads, batches), each of these two 1 where the lists do not vary with it.
struct CoverArgs {
  int* tiles;
  int tile_stride;  ///< ints a row, at least 2 + 2 * tiles along the other axis: the lists, and room to work in
  int q_len, kv_len, q_offset;
  int m, n;             ///< queries and keys of a tile
  const int* q_starts;  ///< packed: batch + 1 starts of each, else null
  const int* kv_starts;
  unsigned* next;  ///< becomes 0, for the kernel that comes next; null if that kernel has no counter
};

}  // namespace attune

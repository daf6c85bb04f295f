// codegen/cuda/contract/cover_args.cuh — what a launch hands to cover.cuh; the host fills the same struct
#pragma once

namespace attune {

/// Threads of a block. A warp has few tiles, because a verdict takes a microsecond, mostly the latency of its reads.
constexpr int cover_threads = 1024;

/// What is written of a cover: for each tile of queries the tiles of keys to visit; for each tile of keys the tiles of
/// queries; or a table of both, a row for each tile of keys, with a Visit for each tile of queries.
enum class CoverForm { of_queries, of_keys, visits };

/// What a table says of two tiles, in a word; 0: there is nothing to visit. `below`, `above`: how many tiles of keys
/// before and after this one the queries visit too.
struct Visit {
  static constexpr unsigned there = 1, whole = 2;  ///< bits; whole: no pair of a key that exists is removed
  static constexpr int below_at = 2, above_at = 17, most_tiles = 1 << (above_at - below_at);  ///< bits from these on
};

/// The grid is (tiles of queries, or of keys for lists of these, heads, batches), each of these two 1 where the lists
/// do not vary with it.
struct CoverArgs {
  int* tiles;
  int tile_stride;  ///< ints a row: of lists at least 2 + 2 * tiles along the other axis, which has room to work in; of
                    ///< a table the tiles of queries of the longest sequence
  int q_len, kv_len, q_offset;
  int m, n;             ///< queries and keys of a tile
  const int* q_starts;  ///< packed: batch + 1 starts of each, else null
  const int* kv_starts;
  unsigned* next;     ///< becomes 0, for the kernel that comes next; null if that kernel has no counter
  unsigned* visited;  ///< of a table: how many visits it has is added to it; may be null
};

}  // namespace attune

// codegen/cuda/contract/cover_args.cuh — what a launch hands to cover.cuh; the host fills the same struct
#pragma once

#include "codegen/cuda/contract/entries.cuh"

namespace attune {

/// Threads of a block. A warp has few tiles, because a verdict takes a microsecond, mostly the latency of its reads.
constexpr int cover_threads = 1024;

/// What is written of a cover: for each tile of queries the tiles of keys to visit; for each tile of keys the tiles of
/// queries; or a table of both, one row per tile of keys, with a Visit per tile of queries.
enum class CoverForm { of_queries, of_keys, visits };

/// One word of the table, for two tiles; 0 if there is nothing to visit. `below`, `above`: the number of tiles of keys
/// before and after this one that the queries visit too. The number after it is stored plus 1, so no visit is 0.
struct Visit {
  /// In the last bits. part: some pairs are masked out; whole: no pair of an existing key is; first_half, second_half:
  /// pairs of the other half of the keys are all masked out.
  enum Kept : unsigned { part, whole, first_half, second_half };
  static constexpr unsigned kept = 3;
  static constexpr int below_at = 2, above_at = 17;  ///< bits from these on
  static constexpr unsigned most_tiles = (1 << (above_at - below_at)) - 1;
};

/// The grid is (tiles of queries, or of keys for lists of queries; heads; batches). Heads and batches are 1 if the
/// lists do not vary with them.
///
/// Entries::tile_stride, ints a row: of lists at least 2 + 2 * tiles along the other axis, which the kernel also uses
/// as scratch; of a table the tiles of queries of the longest sequence.
struct CoverArgs : Entries {
  int* into;          ///< the lists
  int m, n;           ///< queries and keys of a tile
  unsigned* next;     ///< set to 0, for the next kernel; null if that kernel has no counter
  unsigned* visited;  ///< the number of visits in a table is added to it; may be null
};

}  // namespace attune

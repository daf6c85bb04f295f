// runtime/lists.h — covers made by hand: block lists and per-row intervals, as TileLists and back
#pragma once

#include <vector>

#include "runtime/tiles.h"

namespace attune::runtime {

/// Block lists as other libraries keep them, all i32: for tile t of the queries of (b, h), the tiles of keys
/// indices[b, h, t, 0 .. counts[b, h, t]) are partial, those of full_… are full; what is behind the counts is not read.
/// counts [B, H, Mb], indices [B, H, Mb, Nb]; B and H may each be 1: one list for all of them. In any order.
struct BlockLists {
  Tensor counts, indices;
  Tensor full_counts, full_indices;  ///< both or neither
};

/// Throws Error: block-list-type, block-list-shape, block-list-count, block-list-index, block-list-twice.
TileLists from_blocks(const BlockLists& blocks, const Extent& extent);

/// The same lists the other way, with memory of their own: batch (heads) 1 where the lists do not vary with it.
struct OwnedBlocks {
  std::int32_t batch = 1, heads = 1, rows = 0, columns = 0;
  std::vector<std::int32_t> counts, indices, full_counts, full_indices;
  BlockLists view();
};
OwnedBlocks to_blocks(const TileLists& lists);

/// Keys [begin, end) seen by each query, i32 [B, H, Sq]; B and H may each be 1. A query sees the union of its one or
/// two intervals; begin == end is none.
struct RowIntervals {
  struct One {
    Tensor begin, end;
  };
  std::vector<One> all;
};

/// Throws Error: interval-count, interval-type, interval-shape, interval-order, interval-range.
TileLists from_intervals(const RowIntervals& intervals, const Extent& extent);

}  // namespace attune::runtime

// runtime/cuda/order.h — in which order blocks that stay take the tiles of queries of packed sequences
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attune::runtime::cuda {

/// Tiles of so many queries, of all sequences. `starts`: one more than there are sequences.
std::int64_t packed_tiles(std::span<const std::int64_t> starts, int queries);

/// Places for them in a kernel that is given no order: `total` queries of so many sequences.
std::int64_t packed_places(std::int64_t total, std::int64_t sequences, int queries);

/// Of each tile its sequence, and its number there; those first that visit most keys, as far as lengths tell: under a
/// mask, which may be causal, the last ones of long sequences, and without one those of many keys.
std::vector<int> packed_order(std::span<const std::int64_t> q_starts, std::span<const std::int64_t> kv_starts,
                              int queries, bool masked);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/order.h — in which order persistent blocks take the tiles of queries of packed sequences
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attune::runtime::cuda {

/// Number of tiles of `queries` queries in all sequences. `starts`: one more than there are sequences.
std::int64_t packed_tiles(std::span<const std::int64_t> starts, int queries);

/// Number of places for them in a kernel that is given no order: `total` queries in `sequences` sequences.
std::int64_t packed_places(std::int64_t total, std::int64_t sequences, int queries);

/// For each tile, its sequence and its number in it. Tiles that visit most keys come first, as far as lengths tell:
/// under a mask, which may be causal, the last tiles of long sequences; without one, the tiles of sequences with many
/// keys.
std::vector<int> packed_order(std::span<const std::int64_t> q_starts, std::span<const std::int64_t> kv_starts,
                              int queries, bool masked);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/order.h — the order in which persistent blocks take the tiles of queries of packed sequences
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace attune::runtime::cuda {

/// Number of tiles of `queries` queries in all sequences. `starts`: has sequences + 1 elements.
std::int64_t packed_tiles(std::span<const std::int64_t> starts, int queries);

/// Upper bound on the number of tiles, for a kernel that is given no order: `total` queries in `sequences` sequences.
std::int64_t packed_places(std::int64_t total, std::int64_t sequences, int queries);

/// For each tile, its sequence and its number in that sequence. Tiles that visit the most keys come first, as far as
/// lengths determine that: with a mask, which may be causal, the last tiles of long sequences; without a mask, the
/// tiles of sequences with many keys.
std::vector<int> packed_order(std::span<const std::int64_t> q_starts, std::span<const std::int64_t> kv_starts,
                              int queries, bool masked);

}  // namespace attune::runtime::cuda

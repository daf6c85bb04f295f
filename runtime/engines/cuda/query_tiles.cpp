// runtime/engines/cuda/query_tiles.cpp — the order in which persistent blocks take the tiles of queries of packed
// sequences
#include "runtime/engines/cuda/query_tiles.h"

#include <algorithm>
#include <numeric>

#include "codegen/ceil_div.h"

namespace attune::runtime::cuda {
namespace {

std::int64_t length(std::span<const std::int64_t> starts, std::size_t b) { return starts[b + 1] - starts[b]; }
std::int64_t tiles(std::span<const std::int64_t> starts, std::size_t b, int queries) {
  return ceil_div(length(starts, b), queries);
}

}  // namespace

std::int64_t packed_tiles(std::span<const std::int64_t> starts, int queries) {
  std::int64_t all = 0;
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) all += tiles(starts, b, queries);
  return all;
}

std::int64_t packed_places(std::int64_t total, std::int64_t sequences, int queries) {
  return total / queries + sequences;
}

std::vector<int> packed_order(std::span<const std::int64_t> q_starts, std::span<const std::int64_t> kv_starts,
                              int queries, bool masked) {
  std::vector<std::size_t> sequences(q_starts.size() - 1);
  std::iota(sequences.begin(), sequences.end(), std::size_t{0});
  const auto longest_first = [&](std::span<const std::int64_t> starts) {
    std::ranges::stable_sort(sequences, std::ranges::greater{}, [&](std::size_t b) { return length(starts, b); });
  };
  std::vector<int> out;
  out.reserve(2 * static_cast<std::size_t>(packed_tiles(q_starts, queries)));
  const auto add = [&](std::size_t b, std::int64_t tile) {
    out.push_back(static_cast<int>(b));
    out.push_back(static_cast<int>(tile));
  };
  if (!masked) {
    if (!kv_starts.empty()) longest_first(kv_starts);
    for (const std::size_t b : sequences)
      for (std::int64_t tile = 0; tile < tiles(q_starts, b, queries); ++tile) add(b, tile);
    return out;
  }
  longest_first(q_starts);
  if (sequences.empty()) return out;
  for (std::int64_t tile = tiles(q_starts, sequences[0], queries) - 1; tile >= 0; --tile)
    for (const std::size_t b : sequences) {
      if (tiles(q_starts, b, queries) <= tile) break;  // the sequences that follow are no longer
      add(b, tile);
    }
  return out;
}

}  // namespace attune::runtime::cuda

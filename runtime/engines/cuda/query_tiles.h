// runtime/engines/cuda/query_tiles.h — the tiles of queries of a call: their number, their order, and the tiles that
// share keys in the L2 cache
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "codegen/ceil_div.h"
#include "compiler/problem.h"

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

/// The way in which a kernel tiles queries.
struct QueryTiling {
  int queries = 0;          ///< queries per tile
  int heads = 1;            ///< query heads of a key head that share a tile
  bool persistent = false;  ///< true for persistent blocks, which take many tiles
};

struct QueryTiles {
  std::int64_t group_sets = 0;  ///< sets of heads that share tiles, per key head
  std::int64_t sets = 0;        ///< the same per batch entry
  std::int64_t order = 0;       ///< packed, persistent: places for the tiles of one set of heads; else 0
  bool persistent = false;      ///< as QueryTiling::persistent
  bool ordered = false;         ///< true if the host knows the starts and sends the order of the tiles
  std::int64_t count = 0;       ///< tiles of all sets; persistent blocks share them, else there is one block per tile

  QueryTiles(const QueryTiling& tiling, const compiler::Problem& p);
};

inline QueryTiles::QueryTiles(const QueryTiling& tiling, const compiler::Problem& p)
    : group_sets(ceil_div(p.group, tiling.heads)), sets(p.kv_heads * group_sets), persistent(tiling.persistent) {
  // A kernel without persistent blocks has, for every sequence, as many blocks as the longest sequence has tiles.
  const bool by_place = p.q.packed() && tiling.persistent;
  ordered = by_place && !p.q.starts_on_device();
  if (ordered)
    order = packed_tiles(p.q.starts, tiling.queries);
  else if (by_place)
    order = packed_places(p.q.total, p.batch, tiling.queries);
  count = sets * (by_place ? order : ceil_div(p.q.length, tiling.queries) * p.batch);
}

/// The number of sets of heads in a section, whose nth tiles follow one another; `bytes`: bytes per element of k and v.
/// By default, their keys and values fill half of the L2 cache. Persistent blocks of a dense call are faster with fewer
/// heads: with many short heads in a section, all blocks load new keys at once, and then none for a while.
inline int section_of(const QueryTiles& of, const compiler::Problem& p, std::int64_t cache_bytes, std::int64_t bytes) {
  constexpr std::int64_t short_length = 1024, long_length = 16384, part = 12;  // of the cache
  const bool packed = p.q.packed() || p.kv.packed();
  const std::int64_t keys = p.kv.packed() ? p.kv.total : p.kv.length, sets = of.sets * (p.q.packed() ? 1 : p.batch);
  const std::int64_t head = std::max<std::int64_t>(keys * (p.d + p.dv) * bytes, 1);
  std::int64_t some = cache_bytes / 2 / head * of.group_sets;
  // The tiles of two heads of 8192 positions, or of one of 16384, fill the blocks of an H100.
  const std::int64_t least = p.q.length < long_length ? 2 : 1;
  if (of.persistent && !packed)
    some = p.q.length <= short_length ? 1 : std::max(cache_bytes / part / head * of.group_sets, least);
  return static_cast<int>(std::clamp(some, of.group_sets, sets));
}

}  // namespace attune::runtime::cuda

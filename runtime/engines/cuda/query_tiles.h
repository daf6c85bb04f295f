// runtime/engines/cuda/query_tiles.h — the tiles of queries of a call: how many, which share keys in the cache, in
// which order
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/problem.h"

namespace attune::runtime::cuda {

/// How a kernel takes tiles of queries.
struct QueryTiling {
  int queries = 0;          ///< of a tile
  int heads = 1;            ///< query heads of a key head that share a tile
  bool persistent = false;  ///< blocks stay and take many tiles
};

struct QueryTiles {
  std::int64_t group_sets = 0;  ///< sets of heads that share tiles, of a key head
  std::int64_t sets = 0;        ///< the same of a batch entry
  std::int64_t order = 0;       ///< packed, persistent: places for the tiles of one set of heads; else 0
  bool ordered = false;         ///< the host knows the starts, and sends the order of the tiles
  std::int64_t count = 0;       ///< of all sets: what blocks share, or one block each

  QueryTiles(const QueryTiling& tiling, const compiler::Problem& p);
};

/// Sets of heads whose keys and values together fill half of the cache. `bytes`: of an element of k and v.
int section_of(const QueryTiles& tiles, const compiler::Problem& p, std::int64_t cache_bytes, std::int64_t bytes);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/query_tiles.cpp — the tiles of queries of a call: how many, which share keys in the cache, in
// which order
#include "runtime/engines/cuda/query_tiles.h"

#include <algorithm>

#include "codegen/ceil_div.h"
#include "runtime/engines/cuda/order.h"

namespace attune::runtime::cuda {

using compiler::Problem;

QueryTiles::QueryTiles(const QueryTiling& tiling, const Problem& p)
    : group_sets(ceil_div(p.group, tiling.heads)), sets(p.kv_heads * group_sets) {
  // A kernel whose blocks do not stay has a block for each tile of the longest sequence, of every sequence.
  const bool by_place = p.q.packed() && tiling.persistent;
  ordered = by_place && !p.q.starts_on_device();
  if (ordered)
    order = packed_tiles(p.q.starts, tiling.queries);
  else if (by_place)
    order = packed_places(p.q.total, p.batch, tiling.queries);
  count = sets * (by_place ? order : ceil_div(p.q.length, tiling.queries) * p.batch);
}

int section_of(const QueryTiles& of, const Problem& p, std::int64_t cache_bytes, std::int64_t bytes) {
  const std::int64_t keys = p.kv.packed() ? p.kv.total : p.kv.length, sets = of.sets * (p.q.packed() ? 1 : p.batch);
  const std::int64_t head = std::max<std::int64_t>(keys * (p.d + p.dv) * bytes, 1);
  return static_cast<int>(std::clamp(cache_bytes / 2 / head * of.group_sets, of.group_sets, sets));
}

}  // namespace attune::runtime::cuda

// runtime/engines/cpu/kv_entries.h — the (batch entry, head) pairs of keys and values, and the queries that read each
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/engines/layout.h"

namespace attune::runtime::cpu {

/// One (batch entry, head) of keys and values.
struct KVEntry {
  std::int64_t b, head, start, length;
  std::int32_t tiles;
  std::int64_t first_tile;  ///< index of its first tile among the tiles of all entries
};

/// Selects the batch entries of a part of a call by their number of queries.
struct Among {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();
  bool has(const Sequence& seq) const { return seq.q_len >= least && seq.q_len <= most; }
};

/// All entries in order, without the entries that `among` excludes. If all batch entries share one entry of keys, it is
/// listed even for an empty batch.
std::vector<KVEntry> kv_entries(const compiler::Problem& problem, std::int32_t tile_kv, const Among& among = {});

/// One (batch entry, head) of queries that reads an entry.
struct Reader {
  std::int64_t b, h;
};

std::int64_t readers_per_entry(const compiler::Problem& problem);
/// The i-th reader of an entry, i < readers_per_entry.
Reader reader_of(const compiler::Problem& problem, const KVEntry& entry, std::int64_t i);

}  // namespace attune::runtime::cpu

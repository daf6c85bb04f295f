// runtime/engines/cpu/visits.h — the keys and values of a call: which queries read each entry, and which of its panels
// each group of their rows needs
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/engines/call.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/layout.h"
#include "runtime/machine/parallel.h"

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

/// The tiling of a call. Products compute rows in groups and columns in panels.
struct Cut {
  std::int32_t tile_q, tile_kv;  ///< rows and columns of a tile: multiples of group and panel
  std::int32_t group, panel;

  std::int32_t groups() const { return tile_q / group; }
  std::int32_t panels() const { return tile_kv / panel; }
};

/// The columns that one group of rows visits in one window of keys. A window has as many panels as a tile, and may
/// start at any panel.
struct VisitedColumns {
  std::int32_t first = 0, last = 0;  ///< columns within the window, whole panels; empty if first == last
  std::int32_t begin = 0, end = 0;   ///< the columns among them with any kept pair
  bool all = false;                  ///< true if no pair of the panels is removed
  bool operator==(const VisitedColumns&) const = default;
};

/// Calls body(first group, groups, visit) for each run of neighbouring groups whose visits are alike and not empty.
template <class Alike, class Body>
void each_run(std::span<const VisitedColumns> visits, const Alike& alike, const Body& body) {
  for (std::size_t g = 0, next = 0; g < visits.size(); g = next) {
    for (next = g + 1; next < visits.size() && alike(visits[next], visits[g]);) ++next;
    if (visits[g].first < visits[g].last)
      body(static_cast<std::int32_t>(g), static_cast<std::int32_t>(next - g), visits[g]);
  }
}

/// For every tile of queries: runs of keys per group.
class Visits {
 public:
  /// For the entries that `among` selects. Evaluates the cover per group and key if its bands are exact, else per whole
  /// tile.
  Visits(const Call& call, const Cut& cut, const Executor& executor, const Among& among = {});

  /// The panels of keys that any group of this tile of queries needs lie within [first, second).
  std::pair<std::int32_t, std::int32_t> panels(std::int64_t b, std::int64_t h, std::int32_t tile_q) const;
  /// Keys that the tile's groups visit: the cost of a task.
  std::int64_t cost(std::int64_t b, std::int64_t h, std::int32_t tile_q) const;
  VisitedColumns visit(std::int64_t b, std::int64_t h, std::int32_t tile_q, std::int32_t group,
                       std::int32_t panel) const;

 private:
  struct Row {
    std::vector<std::int32_t> offsets{0};  ///< by group, into runs; has groups + 1 elements
    std::vector<Run> runs;                 ///< in keys
    std::int64_t keys = 0;
    std::int32_t begin = 0, end = 0;  ///< all runs are within [begin, end)
  };
  const Row& row(std::int64_t b, std::int64_t h, std::int32_t tile_q) const;
  /// Drops the runs of groups without a query of this rank. The other groups begin at the same positions as in the
  /// whole call.
  static void keep_held(Row& row, const compiler::Problem& problem, const Cut& cut, std::int64_t b, std::int32_t first);
  Row ask(const compiler::Problem& problem, const Tiles* tiles, std::int64_t b, std::int64_t h,
          std::int32_t tile_q) const;

  Cut cut_;
  std::int64_t heads_ = 1;  ///< 1 if all heads share their rows
  bool by_batch_ = false;
  std::vector<std::int64_t> starts_;  ///< by batch entry: its first row; one entry if all share
  std::vector<Row> rows_;
};

}  // namespace attune::runtime::cpu

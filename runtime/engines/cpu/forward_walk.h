// runtime/engines/cpu/forward_walk.h — a task of the forward: the loop of a tile of queries over its keys, which are
// packed as products read them
#pragma once

#include "runtime/engines/cpu/forward_plan.h"
#include "runtime/engines/cpu/results.h"
#include "runtime/engines/layout.h"

namespace attune::runtime::cpu {

/// The keys and values of a round of entries: packed once, read by every tile of queries. Values that products can read
/// in place stay there.
class PackedKeys {
 public:
  PackedKeys(const ForwardPlan& plan, const ForwardMemory& memory)
      : plan_(plan), call_(plan.call.forward()), memory_(memory) {}

  /// Later calls refer to these entries.
  void begin(std::span<const KVEntry> round) { first_tile_ = round.front().first_tile; }
  /// Packs one tile of keys. `scratch`: memory for a panel of rows.
  void pack(const KVEntry& entry, std::int64_t tile, std::byte* scratch) const;

  /// The panel of keys that begins at `key`.
  std::uint32_t* keys(const KVEntry& entry, std::int64_t key) const;
  struct Values {
    void* data;
    std::int64_t key, panel;  ///< units from one key, or panel of columns, to the next
  };
  Values values(const KVEntry& entry, std::int64_t key) const;
  /// True if a tile with any of these keys has a value that is infinite or NaN. The keys span at most two tiles.
  bool bad(const KVEntry& entry, std::int64_t first, std::int64_t last) const;

 private:
  std::int64_t tile(const KVEntry& entry) const { return entry.first_tile - first_tile_; }
  KeyRows rows_of(const KVEntry& entry) const {
    return {plan_.problem, call_.page_table, {.b = entry.b, .kv_b = entry.b, .kv_start = entry.start}, entry.head};
  }
  std::int64_t v_panel(const KVEntry& entry) const;
  void pack_panel(const KVEntry& entry, std::int64_t tile, std::int64_t first, std::int64_t rows,
                  std::byte* scratch) const;

  const ForwardPlan& plan_;
  const Forward& call_;
  const ForwardMemory& memory_;
  std::int64_t first_tile_ = 0;
};

/// The state that the tasks of a forward share.
struct ForwardState {
  const ForwardPlan& plan;
  const Visits& visits;
  SlotArgs slots;
  Results results;
  PackedKeys keys;
};

/// A tile of queries of one reader of an entry.
struct ForwardTask {
  const KVEntry* entry;
  Reader reader;
  std::int32_t tile_q;
  std::int64_t cost;  ///< keys that it visits
};

/// Stores the tile's rows of o, lse and max.
void run(const ForwardState& state, const ForwardTask& task, const ForwardScratch& scratch);

}  // namespace attune::runtime::cpu

// runtime/engines/cpu/packed_keys.h — keys and values of the forward as products read them
#pragma once

#include "runtime/engines/cpu/forward_plan.h"
#include "runtime/engines/keys.h"

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

}  // namespace attune::runtime::cpu

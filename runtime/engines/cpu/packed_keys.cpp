// runtime/engines/cpu/packed_keys.cpp — keys and values of the forward as products read them
#include "runtime/engines/cpu/packed_keys.h"

#include <algorithm>

namespace attune::runtime::cpu {

using codegen::per_unit;

/// Values are stored panel by panel, each with all keys of the entry, so that a loop may begin at any key.
std::int64_t PackedKeys::v_panel(const KVEntry& entry) const {
  return entry.tiles * ceil_div(plan_.cut.tile_kv, per_unit(plan_.unit)) * plan_.cut.panel;
}

std::uint32_t* PackedKeys::keys(const KVEntry& entry, std::int64_t key) const {
  return memory_.k + tile(entry) * plan_.k_tile() + key * plan_.qk.as_k;
}

PackedKeys::Values PackedKeys::values(const KVEntry& entry, std::int64_t key) const {
  if (plan_.v_in_place) {
    const MatrixLayout at = rows_of(entry).range(call_.v, key, entry.length).at;
    return {element(call_.v, at.origin), at.row, plan_.cut.panel};
  }
  return {memory_.v + tile(entry) * plan_.v_tile() + key / per_unit(plan_.unit) * plan_.cut.panel, plan_.cut.panel,
          v_panel(entry)};
}

bool PackedKeys::bad(const KVEntry& entry, std::int64_t first, std::int64_t last) const {
  const bool* tiles = memory_.bad + tile(entry);
  return tiles[first / plan_.cut.tile_kv] || tiles[(last - 1) / plan_.cut.tile_kv];
}

void PackedKeys::pack(const KVEntry& entry, std::int64_t tile, std::byte* scratch) const {
  const std::int64_t begin = tile * plan_.cut.tile_kv;
  const std::int64_t end = std::min<std::int64_t>(begin + plan_.cut.tile_kv, entry.length);
  memory_.bad[this->tile(entry) + tile] = false;
  // A panel at a time: rows are still in the L1 cache when they are packed.
  for (std::int64_t first = begin; first < end; first += plan_.cut.panel)
    pack_panel(entry, tile, first, std::min<std::int64_t>(plan_.cut.panel, end - first), scratch);
}

/// `rows`: fewer than a panel has at the end of the entry.
void PackedKeys::pack_panel(const KVEntry& entry, std::int64_t tile, std::int64_t first, std::int64_t rows,
                            std::byte* scratch) const {
  const Cut& cut = plan_.cut;
  const Widths &qk = plan_.qk, &pv = plan_.pv;
  const KeyRows lie = rows_of(entry);
  // Returns true if any element is infinite or NaN.
  const auto load = [&](const Tensor& t, std::int64_t columns, std::int64_t row) {
    bool bad = false;
    for (std::int64_t at = 0; at < rows;) {
      const KeyRows::Range some = lie.range(t, first + at, first + rows);
      std::byte* into = scratch + at * row * element_size(plan_.unit);
      if (some.there)
        bad |= plan_.inputs.load(t, some.at, {.rows = some.count, .columns = columns, .into = into, .row = row});
      else
        std::memset(into, 0, static_cast<std::size_t>(some.count * row * element_size(plan_.unit)));
      at += some.count;
    }
    return bad;
  };
  load(call_.k, qk.columns, plan_.qk_row());
  const codegen::PackColumns k{.from = scratch,
                               .from_row = qk.as_k,
                               .rows = rows,
                               .k = qk.as_k,
                               .into = keys(entry, first),
                               .panel = qk.as_k * cut.panel};
  plan_.kit->pack_columns(&k);

  if (load(call_.v, pv.columns, pv.as_n)) memory_.bad[this->tile(entry) + tile] = true;
  if (plan_.v_in_place) return;
  // Products read whole panels. Rows past the end have p = 0, and 0 times their values must be 0.
  const std::int64_t row_bytes = pv.as_n * element_size(plan_.unit);
  std::memset(scratch + rows * row_bytes, 0, static_cast<std::size_t>((cut.panel - rows) * row_bytes));
  const Values to = values(entry, first);
  const codegen::PackRows v{.from = scratch,
                            .from_row = pv.as_n,
                            .rows = cut.panel,
                            .columns = pv.as_n,
                            .into = static_cast<std::uint32_t*>(to.data),
                            .panel = to.panel};
  plan_.kit->pack_rows(&v);
}

}  // namespace attune::runtime::cpu

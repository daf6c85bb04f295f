// runtime/engines/cpu/backward_state.cpp — the state that the parts of a backward share: kernels, sizes, per-row
// values, sums
#include "runtime/engines/cpu/backward_state.h"

#include <algorithm>

#include "runtime/engines/cpu/captured.h"
#include "runtime/engines/keys.h"

namespace attune::runtime::cpu {
namespace {

/// Limits on a worker's bytes: its prepared tiles of queries, and its sums of dk and dv.
constexpr std::int64_t most_prepared = 1 << 23, most_sums = 1 << 23;

}  // namespace

BackwardState::BackwardState(const Call& of, const KernelsFor& what)
    : call(of.backward()), problem(of.problem),
      unit(call.grad_o.dtype == call.q.dtype ? unit_for(what.isa, call.q.dtype) : Unit::f32),
      kit(cpu::kit(what, unit, call.q.dtype)), kernel(backward_kernel(of.mod, wanted(of), what, unit)),
      sizes(problem, kit->tiling, unit), plan(problem, sizes.cut, sizes.d.as_n * std::int64_t{sizeof(float)}),
      slots(of), inputs(what, unit, call.q.dtype), grad_o(what, unit, call.grad_o.dtype),
      dk_rows(what, Unit::f32, call.dk.dtype), dv_rows(what, Unit::f32, call.dv.dtype) {
  Workspace one;
  lay_out_query_tile(one, sizes, row_fields());
  const std::int64_t q_tiles = std::max<std::int64_t>(1, ceil_div(problem.q.length, sizes.cut.tile_q));
  prepared = std::clamp<std::int64_t>(most_prepared / static_cast<std::int64_t>(one.used()), 1, q_tiles);
  // If all queries of a task stay prepared, tiles of keys are summed one after another.
  const std::int64_t sums = (k_sums() + v_sums()) * std::int64_t{sizeof(float)};
  const std::int64_t kv_tiles = std::max<std::int64_t>(1, ceil_div(problem.kv.length, sizes.cut.tile_kv));
  const bool all_prepared = prepared == q_tiles && plan.most_readers() <= 1;
  strip = all_prepared ? 1 : std::clamp<std::int64_t>(most_sums / sums, 1, kv_tiles);
}

void BackwardState::store(const KVEntry& entry, std::int32_t tile, const float* dk_sums, const float* dv_sums) const {
  const std::int64_t first = std::int64_t{tile} * sizes.cut.tile_kv;
  const std::int64_t columns = std::min<std::int64_t>(sizes.cut.tile_kv, entry.length - first);
  const auto one = [&](const TensorRows& rows, const Tensor& t, const float* from, const Widths& w, double scale) {
    if (!t.given()) return;
    static const Tensor no_pages;
    const KeyRows lie(problem, no_pages, {.b = entry.b, .kv_b = entry.b, .kv_start = entry.start}, entry.head);
    for (std::int64_t at = 0; at < columns;) {
      const KeyRows::Range some = lie.range(t, first + at, first + columns);
      // The sums are transposed: their rows are the tensor's columns.
      if (some.there)
        rows.store(t, {.origin = some.at.origin, .row = some.at.column, .column = some.at.row},
                   {.from = from + at,
                    .row = sizes.score_row(),
                    .rows = w.columns,
                    .columns = some.count,
                    .scale = static_cast<float>(scale)});
      at += some.count;
    }
  };
  one(dk_rows, call.dk, dk_sums, sizes.d, unit == Unit::f32 ? 1 : problem.scale);
  one(dv_rows, call.dv, dv_sums, sizes.dv, 1);
}

BackwardScratch::BackwardScratch(Workspace& memory, const BackwardState& state) {
  const BackwardSizes& sizes = state.sizes;
  const Cut& cut = sizes.cut;
  rows = memory.take<std::byte>(cut.tile_kv * 4 * std::max(sizes.k_row(), sizes.row(sizes.dv)));
  k_columns = memory.take<std::uint32_t>(cut.tile_kv * sizes.d.as_k);
  k_rows = memory.take<std::uint32_t>(cut.tile_kv / sizes.per_unit() * sizes.d.as_n);
  v_columns = memory.take<std::uint32_t>(cut.tile_kv * sizes.dv.as_k);
  const std::int64_t scores = cut.tile_q * sizes.score_row();
  p = s = memory.take<float>(scores);
  ds = dp = memory.take<float>(scores);
  if (state.unit == Unit::bf16) {
    p = memory.take<bf16>(scores);
    ds = memory.take<bf16>(scores);
    p_panels = memory.take<std::uint32_t>(cut.panels() * sizes.panel_of_rows());
    ds_panels = memory.take<std::uint32_t>(cut.panels() * sizes.panel_of_rows());
  }
  if (state.plan.parts() == 1) {
    dk = memory.take<float>(state.strip * state.k_sums());
    dv = memory.take<float>(state.strip * state.v_sums());
  }
  head = memory.take<std::uint32_t>(static_cast<std::int64_t>(state.kernel->parts.head_fields()));
  col = memory.take<std::uint32_t>(static_cast<std::int64_t>(state.kernel->parts.col_fields()) * cut.tile_kv);
  for (std::int64_t i = 0; i < state.prepared; ++i)
    queries.push_back(lay_out_query_tile(memory, sizes, state.row_fields()));
}

}  // namespace attune::runtime::cpu

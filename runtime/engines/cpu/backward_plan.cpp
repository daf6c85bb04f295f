// runtime/engines/cpu/backward_plan.cpp — divides a backward into tasks, depending only on the call's shapes, and keeps
// what its parts share
#include "runtime/engines/cpu/backward_plan.h"

#include <algorithm>

#include "runtime/engines/cpu/captured.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/layout.h"

namespace attune::runtime::cpu {
namespace {

/// Enough for the threads of most machines; each extra chunk adds one more dq to sum up.
constexpr std::int64_t tasks_wanted = 32;
/// A task's own dq costs as much as some dozens of keys.
constexpr std::int64_t least_keys = 1024;
/// Limit on the bytes of all chunks' dqs together.
constexpr std::int64_t most_group_bytes = std::int64_t{1} << 31;

}  // namespace

BackwardPlan::BackwardPlan(const compiler::Problem& problem, const Cut& cut, std::int64_t row_bytes)
    : problem_(problem), cut_(cut), entries_(kv_entries(problem, cut.tile_kv)) {
  std::int64_t longest = 0;
  for (const KVEntry& entry : entries_) {
    tiles_ += entry.tiles;
    longest = std::max<std::int64_t>(longest, entry.tiles);
  }
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    first_rows_.push_back(rows_);
    rows_ += padded_rows(b) * problem.q_heads;
  }
  // The number for the whole call, even if a rank computes only some heads.
  const auto count = std::max<std::int64_t>(1, (problem.kv_shared ? 1 : problem.batch) * problem.kv_heads);
  // Small calls run on one thread, where parts would pack the keys again.
  const double products = static_cast<double>(rows_) * static_cast<double>(longest * cut.tile_kv) *
                          static_cast<double>(problem.d + problem.dv);
  const auto worthwhile = static_cast<std::int64_t>(std::min<double>(worthwhile_workers(products), tasks_wanted));
  parts_ = std::clamp<std::int64_t>(ceil_div(std::min(tasks_wanted, worthwhile), count), 1,
                                    std::max<std::int64_t>(1, readers_per_entry(problem)));
  const std::int64_t fit = std::max<std::int64_t>(1, most_group_bytes / std::max<std::int64_t>(1, rows_ * row_bytes));
  chunks_ = std::max<std::int64_t>(
      1, std::min({ceil_div(tasks_wanted, count * parts_), longest * cut.tile_kv / least_keys, fit}));
  for (std::size_t e = 0; e < entries_.size(); ++e)
    for (std::int64_t part = 0; part < parts_; ++part)
      for (std::int64_t chunk = 0; chunk < chunks(entries_[e].tiles); ++chunk) tasks_.push_back({e, part, chunk});
}

std::int64_t BackwardPlan::chunks(std::int64_t tiles) const { return std::clamp<std::int64_t>(tiles, 1, chunks_); }

std::vector<Reader> BackwardPlan::readers(const BackwardTask& task) const {
  const KVEntry& entry = entries_[task.entry];
  const std::int64_t all = readers_per_entry(problem_);
  std::vector<Reader> out;
  for (std::int64_t i = all * task.part / parts_; i < all * (task.part + 1) / parts_; ++i)
    out.push_back(reader_of(problem_, entry, i));
  return out;
}

/// Assigns tiles to chunks in zigzag order, which balances the load for a causal mask. The rule is the same for entries
/// of any length.
std::vector<std::int32_t> BackwardPlan::tiles(const BackwardTask& task) const {
  std::vector<std::int32_t> out;
  for (std::int32_t t = 0; t < entries_[task.entry].tiles; ++t) {
    const std::int64_t i = t % (2 * chunks_);
    if ((i < chunks_ ? i : 2 * chunks_ - 1 - i) == task.chunk) out.push_back(t);
  }
  return out;
}

std::int64_t BackwardPlan::padded_rows(std::int64_t b) const {
  return round_up(sequence(problem_, b).q_len, cut_.group);
}

std::int64_t BackwardPlan::first_row(std::int64_t b, std::int64_t h) const {
  return first_rows_[static_cast<std::size_t>(b)] + h * padded_rows(b);
}

BackwardPlan::Axes BackwardPlan::place(const BackwardTask& task) const {
  const KVEntry& entry = entries_[task.entry];
  return {entry.b, entry.head, task.part, task.chunk};
}

BackwardPlan::Axes BackwardPlan::sizes() const {
  return {problem_.kv_shared ? 1 : problem_.batch, problem_.kv_heads, parts_, chunks_};
}

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

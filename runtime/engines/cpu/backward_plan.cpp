// runtime/engines/cpu/backward_plan.cpp — divides a backward into tasks, depending only on the call's shapes
#include "runtime/engines/cpu/backward_plan.h"

#include <algorithm>

#include "runtime/engines/cpu/engine.h"

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

}  // namespace attune::runtime::cpu

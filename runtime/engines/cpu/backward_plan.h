// runtime/engines/cpu/backward_plan.h — divides a backward into tasks, depending only on the call's shapes
#pragma once

#include "runtime/engines/cpu/kv_entries.h"
#include "runtime/engines/cpu/operands.h"

namespace attune::runtime::cpu {

/// Some readers of an entry against some of the entry's tiles. One thread computes the task from start to end, in a
/// fixed order.
struct BackwardTask {
  std::size_t entry;
  std::int64_t part, chunk;  ///< index of the part of the readers, and of the chunk of the tiles
};

/// The tasks of each part sum dk and dv of a tile separately, and the tasks of each chunk sum dq of a row separately;
/// the sums are then added in a fixed order. Results are the same for any number of threads.
class BackwardPlan {
 public:
  BackwardPlan(const compiler::Problem& problem, const Cut& cut, std::int64_t row_bytes);

  const std::vector<KVEntry>& entries() const { return entries_; }
  const std::vector<BackwardTask>& tasks() const { return tasks_; }
  std::int64_t parts() const { return parts_; }
  std::int64_t chunks() const { return chunks_; }  ///< maximum over entries
  std::int64_t chunks(std::int64_t tiles) const;   ///< of an entry with this many tiles
  std::int64_t tiles() const { return tiles_; }    ///< of all entries

  std::int64_t most_readers() const { return ceil_div(readers_per_entry(problem_), parts_); }  ///< of a task
  std::vector<Reader> readers(const BackwardTask& task) const;
  std::vector<std::int32_t> tiles(const BackwardTask& task) const;

  /// Rows of queries of all batch entries and heads, each padded to whole groups.
  std::int64_t rows() const { return rows_; }
  std::int64_t first_row(std::int64_t b, std::int64_t h) const;
  std::int64_t padded_rows(std::int64_t b) const;

  /// A task's coordinates along the axes of the division: batch entry of keys, head of keys, part, chunk.
  static constexpr std::size_t axes = 4;
  using Axes = std::array<std::int64_t, axes>;
  Axes place(const BackwardTask& task) const;
  Axes sizes() const;

 private:
  const compiler::Problem& problem_;
  Cut cut_;
  std::vector<KVEntry> entries_;
  std::vector<BackwardTask> tasks_;
  std::vector<std::int64_t> first_rows_;  ///< by batch entry
  std::int64_t parts_ = 1, chunks_ = 1, tiles_ = 0, rows_ = 0;
};

}  // namespace attune::runtime::cpu

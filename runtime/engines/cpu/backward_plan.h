// runtime/engines/cpu/backward_plan.h — divides a backward into tasks, depending only on the call's shapes, and keeps
// what its parts share
#pragma once

#include <span>

#include "runtime/engines/cpu/operands.h"
#include "runtime/engines/cpu/query_tiles.h"
#include "runtime/engines/cpu/visits.h"

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

struct BackwardState {
  BackwardState(const Call& of, const KernelsFor& what);

  const Backward& call;
  const compiler::Problem& problem;
  Unit unit;
  Held<Kit> kit;
  Held<BackwardKernel> kernel;
  BackwardSizes sizes;
  BackwardPlan plan;
  SlotArgs slots;
  TensorRows inputs, grad_o;  ///< loaded as the Unit
  TensorRows dk_rows, dv_rows;
  std::int64_t prepared, strip;  ///< tiles of queries that a worker keeps prepared, tiles of keys it sums side by side

  const Visits* visits = nullptr;
  Tensor lse{};
  float *delta = nullptr, *delta_sums = nullptr;  ///< by row of the plan; delta_sums by chunk too
  float* dq = nullptr;                            ///< [chunk][row][sizes.d.as_n]
  float *dk = nullptr, *dv = nullptr;             ///< if readers are split into parts: [part][tile], transposed

  std::int64_t row_fields() const { return static_cast<std::int64_t>(kernel->parts.row_fields()); }
  /// Floats in a tile's sums.
  std::int64_t k_sums() const { return sizes.rows_of_sums(sizes.d) * sizes.score_row(); }
  std::int64_t v_sums() const { return sizes.rows_of_sums(sizes.dv) * sizes.score_row(); }
  std::int32_t q_tiles(std::int64_t b) const {
    return static_cast<std::int32_t>(ceil_div(sequence(problem, b).q_len, sizes.cut.tile_q));
  }
  std::int64_t chunks(std::int64_t b) const {
    return plan.chunks(ceil_div(sequence(problem, b).kv_len, sizes.cut.tile_kv));
  }
  /// Stores dk and dv of a tile of keys, from transposed sums.
  void store(const KVEntry& entry, std::int32_t tile, const float* dk_sums, const float* dv_sums) const;
};

/// The result of a pass over all pairs: delta = sum p dp, if it is not dO . O, or the gradients.
enum class Pass : std::uint8_t { Sums, Gradients };

/// One worker's memory.
struct BackwardScratch {
  BackwardScratch(Workspace& memory, const BackwardState& state);

  std::byte* rows;  ///< a tile of keys or values before it is packed
  std::uint32_t *k_columns, *k_rows, *v_columns;
  bool bad_k = false;                                       ///< true if the tile holds an infinity or a NaN
  float *s, *dp;                                            ///< [tile_q][score_row]
  void *p, *ds;                                             ///< f32: the memory of s and dp
  std::uint32_t *p_panels = nullptr, *ds_panels = nullptr;  ///< bf16: p and ds in pairs of rows
  float *dk = nullptr, *dv = nullptr;                       ///< transposed sums of a strip
  std::uint32_t *head, *col;
  std::vector<QueryTile> queries;
};

/// Adds to dq and to the captured gradients (by slot); stores dk and dv, or leaves them in its part's sums.
void run(const BackwardState& state, const BackwardTask& task, BackwardScratch& scratch, Pass pass,
         float* const* gradients);

/// The current tile of keys, packed in the scratch, and the memory for the sums of its gradients.
struct KeysAtHand {
  BackwardScratch& s;
  Pass pass;
  float* const* gradients;  ///< of captured tensors, by slot
  std::int32_t tile = 0;
  float *dk = nullptr, *dv = nullptr;  ///< transposed
  /// The first row of the chunk and the current reader, in delta_sums and in dq.
  std::int64_t first_row = 0;
};

/// `visits`: one per group of query rows.
void meet(const BackwardState& state, const KeysAtHand& keys, const QueryTile& queries,
          std::span<const VisitedColumns> visits);

}  // namespace attune::runtime::cpu

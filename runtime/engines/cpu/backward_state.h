// runtime/engines/cpu/backward_state.h — the state that the parts of a backward share: kernels, sizes, per-row values,
// sums
#pragma once

#include "runtime/engines/cpu/backward_plan.h"
#include "runtime/engines/cpu/query_tiles.h"

namespace attune::runtime::cpu {

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

}  // namespace attune::runtime::cpu

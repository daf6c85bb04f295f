// runtime/engines/cpu/tile_pair.h — a tile of keys against a tile of queries: the backward's five products, p and ds
#pragma once

#include <span>

#include "runtime/engines/cpu/backward_plan.h"

namespace attune::runtime::cpu {

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

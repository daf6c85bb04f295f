// runtime/cpu/tile_pair.h — a tile of keys meets a tile of queries: the backward's five products and what is between
#pragma once

#include <span>

#include "runtime/cpu/backward_state.h"

namespace attune::runtime::cpu {

/// The tile of keys at hand, packed in the scratch, and where its gradients are summed.
struct KeysAtHand {
  BackwardScratch& s;
  Pass pass;
  float* const* gradients;  ///< of captured tensors, by slot
  std::int32_t tile = 0;
  float *dk = nullptr, *dv = nullptr;  ///< transposed
  /// The chunk's first row of the reader at hand: in delta_sums, and in dq.
  std::int64_t first_row = 0;
};

/// `visits`: by group of the queries' rows.
void meet(const BackwardState& state, const KeysAtHand& keys, const QueryTile& queries, std::span<const Visit> visits);

}  // namespace attune::runtime::cpu

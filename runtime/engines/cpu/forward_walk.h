// runtime/engines/cpu/forward_walk.h — a task of the forward: the loop of a tile of queries over its keys
#pragma once

#include "runtime/engines/cpu/packed_keys.h"
#include "runtime/engines/cpu/results.h"

namespace attune::runtime::cpu {

/// The state that the tasks of a forward share.
struct ForwardState {
  const ForwardPlan& plan;
  const Visits& visits;
  SlotArgs slots;
  Results results;
  PackedKeys keys;
};

/// A tile of queries of one reader of an entry.
struct ForwardTask {
  const KVEntry* entry;
  Reader reader;
  std::int32_t tile_q;
  std::int64_t cost;  ///< keys that it visits
};

/// Stores the tile's rows of o, lse and max.
void run(const ForwardState& state, const ForwardTask& task, const ForwardScratch& scratch);

}  // namespace attune::runtime::cpu

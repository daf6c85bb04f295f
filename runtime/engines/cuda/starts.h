// runtime/engines/cuda/starts.h — the starts of packed sequences for kernels: the caller's, or sent from the host
#pragma once

#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/query_tiles.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// Pointers on the device; null if sequences are not packed, or if the order is not known.
struct Starts {
  const int *q = nullptr, *kv = nullptr, *order = nullptr;
};

/// Starts that the host knows, and the order of tiles of `queries` queries that follows from them, are sent to the
/// workspace; without `out` that is only taken. `masked`: true if the mask may remove pairs.
Starts starts_of(Workspace& space, Launches* out, cu::Stream stream, const compiler::Problem& p,
                 const QueryTiles& tiles, int queries, bool masked, const Tensor& cu_q, const Tensor& cu_kv);

}  // namespace attune::runtime::cuda

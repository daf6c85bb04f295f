// runtime/engines/cuda/starts.h — where packed sequences start, as kernels read it: the caller's, or sent from the host
#pragma once

#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/query_tiles.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// On the device; null where sequences are not packed, or the order is not known.
struct Starts {
  const int *q = nullptr, *kv = nullptr, *order = nullptr;
};

/// Room for starts that the host knows, and for the order of tiles that follows from them.
class StartsRoom {
 public:
  StartsRoom(WorkspaceLayout& space, const compiler::Problem& p, const QueryTiles& tiles);

  /// Refuses to send into a graph, which would not keep what was sent.
  void require_no_capture(cu::Stream stream) const;
  /// The starts as kernels get them; what the host knows is sent first. `masked`: the mask may remove pairs.
  Starts send(Launches& launches, std::byte* memory, const compiler::Problem& p, const QueryTiling& tiling, bool masked,
              const Tensor& cu_q, const Tensor& cu_kv) const;

 private:
  Room<int> starts_, order_;
};

}  // namespace attune::runtime::cuda

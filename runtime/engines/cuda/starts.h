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

/// Workspace for starts that the host knows, and for the order of tiles that follows from the starts.
class StartsRoom {
 public:
  StartsRoom(WorkspaceLayout& space, const compiler::Problem& p, const QueryTiles& tiles) {
    if (p.q.packed() && !p.q.starts_on_device()) take(space, p, tiles);
  }

  /// Refuses to send during a capture, because a graph would not keep the sent bytes.
  void require_no_capture(cu::Stream stream) const {
    if (starts_.count > 0 && capturing(stream)) refuse_capture();
  }
  /// The starts for kernels; the starts that the host knows are sent first. `masked`: true if the mask may remove
  /// pairs.
  Starts send(Launches& launches, std::byte* memory, const compiler::Problem& p, const QueryTiling& tiling, bool masked,
              const Tensor& cu_q, const Tensor& cu_kv) const {
    if (!p.q.packed()) return {};
    if (starts_.count == 0) return {static_cast<const int*>(cu_q.data), static_cast<const int*>(cu_kv.data), nullptr};
    return send_known(launches, memory, p, tiling, masked);
  }

 private:
  void take(WorkspaceLayout& space, const compiler::Problem& p, const QueryTiles& tiles);
  [[noreturn]] static void refuse_capture();
  Starts send_known(Launches& launches, std::byte* memory, const compiler::Problem& p, const QueryTiling& tiling,
                    bool masked) const;

  Region<int> starts_, order_;
};

}  // namespace attune::runtime::cuda

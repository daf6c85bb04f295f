// codegen/cuda/emulated/ptx/cluster.cuh — blocks of a cluster meet, and read each other's shared memory
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

constexpr bool has_clusters = __CUDA_ARCH__ >= 900;

inline void meet_cluster(Site at = Site::here()) {
  if constexpr (has_clusters) {
    __syncwarp(~0u, at);
    attune_machine->meet_cluster(at);
  }
}
inline unsigned shared_of(unsigned mine, int nth, Site at = Site::here()) {
  return has_clusters ? attune_machine->address_in_cluster(mine, nth, at) : mine;
}
inline float4 load_cluster(unsigned from, Site at = Site::here()) {
  return has_clusters ? *static_cast<const float4*>(attune_machine->cluster_shared(from, 16, at)) : float4{};
}
inline float2 load_cluster_pair(unsigned from, Site at = Site::here()) {
  return has_clusters ? *static_cast<const float2*>(attune_machine->cluster_shared(from, 8, at)) : float2{};
}

}  // namespace attune

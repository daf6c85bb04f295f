// codegen/cuda/ptx/cluster.cuh — blocks of a cluster meet, and read each other's shared memory; before sm_90 no launch
// has clusters
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

#if __CUDA_ARCH__ >= 900
constexpr bool has_clusters = true;
#else
constexpr bool has_clusters = false;
#endif

/// After it, all threads of the cluster see what each thread wrote before.
__device__ inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// The address in the shared memory of the cluster's nth block that corresponds to this one.
__device__ inline unsigned shared_of(unsigned mine, int nth) {
  unsigned out = mine;
#if __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(mine), "r"(nth));
#endif
  return out;
}
__device__ inline float4 load_cluster(unsigned from) {
  float4 out{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "r"(from)
               : "memory");
#endif
  return out;
}
__device__ inline float2 load_cluster_pair(unsigned from) {
  float2 out{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(from) : "memory");
#endif
  return out;
}

}  // namespace attune

// codegen/cuda/ptx/named_barrier.cuh — the hardware's sixteen barriers of a block, for some of its threads
#pragma once

namespace attune {

/// bar.sync: waits until `threads` threads of the block, a multiple of 32, have synced or arrived.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// bar.arrive: arrives without waiting.
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace attune

// codegen/cuda/ptx/global.cuh — accesses to global memory that the compiler must neither split nor reorder
#pragma once

namespace attune {

/// st.global.v4.b32: 16 bytes, at a multiple of 16. A plain assignment became four stores.
__device__ inline void global_put(void* at, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
/// st.global.b16
__device__ inline void global_put(void* at, unsigned short x) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(at), "h"(x) : "memory");
}

/// discard.global.L2: nothing reads these 128 bytes, at a multiple of 128, before they are written again, so the L2
/// cache need not write them to memory.
__device__ inline void global_discard(void* at) { asm volatile("discard.global.L2 [%0], 128;" ::"l"(at) : "memory"); }

/// ld.acquire.gpu: after it, this thread sees what other blocks wrote before they released `at`.
__device__ inline unsigned global_acquire(const unsigned* at) {
  unsigned out;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(out) : "l"(at) : "memory");
  return out;
}
/// st.release.gpu: threads that acquire it see what this thread wrote before.
__device__ inline void global_release(unsigned* at, unsigned x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

}  // namespace attune

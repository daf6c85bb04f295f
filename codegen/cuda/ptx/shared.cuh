// codegen/cuda/ptx/shared.cuh — loads from and stores to the block's shared memory, by its own 32-bit addresses
//
// Addresses are multiples of the access size: 2, 4, 8 or 16 bytes.
#pragma once

namespace attune {

/// The shared-memory address of a generic pointer.
__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// ---- st.shared ---------------------------------------------------------------------------------------------------

__device__ inline void shared_put(unsigned at, unsigned short x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(at), "h"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, int x) {
  asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x, unsigned y) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
__device__ inline void shared_put(unsigned at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ inline void shared_put(unsigned at, unsigned x, unsigned y, unsigned z, unsigned w) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
__device__ inline void shared_put(unsigned at, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}

// ---- ld.shared ---------------------------------------------------------------------------------------------------

__device__ inline unsigned short shared_get_half(unsigned at) {
  unsigned short out;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(out) : "r"(at) : "memory");
  return out;
}
__device__ inline int shared_get(unsigned at) {
  int out;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(out) : "r"(at) : "memory");
  return out;
}
/// The compiler may move it past accesses to other memory, but not past other statements of this folder.
__device__ inline float2 shared_get2(unsigned at) {
  float2 out;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(out.x), "=f"(out.y) : "r"(at));
  return out;
}
__device__ inline float4 shared_get4(unsigned at) {
  float4 out;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(out.x), "=f"(out.y), "=f"(out.z), "=f"(out.w)
               : "r"(at)
               : "memory");
  return out;
}
__device__ inline uint4 shared_get_words(unsigned at) {
  uint4 out;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "r"(at)
               : "memory");
  return out;
}

// ---- flags: words that some threads read while others write them, and that may be seen late
// --------------------------

__device__ inline void shared_put_flag(unsigned at, int x) { shared_put(at, x); }
__device__ inline int shared_get_flag(unsigned at) { return shared_get(at); }

}  // namespace attune

// codegen/cuda/ptx/registers.cuh — what the compiler may assume of registers, and how many a warp has
#pragma once

namespace attune {

// Emits no instruction: the compiler assumes that x changes here. So it neither computes later values from x before
// this point, nor keeps values computed from x in extra registers across it.
__device__ inline void pin(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(int& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(float& x) { asm volatile("" : "+f"(x)); }
/// Memory counts as changed too, so no earlier read is reused.
__device__ inline void pin_with_memory(int& x) { asm volatile("" : "+r"(x)::"memory"); }
/// The same for an array. Accesses to registers of products under way stay on their side of this point.
template <int N>
__device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// mov.b32: a copy of x that the compiler treats as a different value.
__device__ inline float moved(float x) {
  float out;
  asm volatile("mov.b32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// setmaxnreg.inc, by all warps of a warpgroup: waits until each thread can have N registers.
template <int N>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/// setmaxnreg.dec: each thread keeps N registers, and releases the others.
template <int N>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace attune

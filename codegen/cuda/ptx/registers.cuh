// codegen/cuda/ptx/registers.cuh — what the compiler may assume of registers, and how many a warp has
#pragma once

namespace attune {

// No instruction: the compiler takes x for changed here. So it can neither compute what follows from x before this
// point, nor keep what it computed from x before for use after it, in a register of its own.
__device__ inline void pin(unsigned& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(int& x) { asm volatile("" : "+r"(x)); }
__device__ inline void pin(float& x) { asm volatile("" : "+f"(x)); }
/// Memory counts as changed too: nothing that was read before is kept.
__device__ inline void pin_with_memory(int& x) { asm volatile("" : "+r"(x)::"memory"); }
/// The same of an array. Accesses to registers that products under way use stay on their side of this point.
template <int N>
__device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// mov.b32: x in another register, which the compiler does not take for the same one.
__device__ inline float moved(float x) {
  float out;
  asm volatile("mov.b32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// setmaxnreg.inc, by all warps of a warpgroup: each thread has N registers, once the block has that many free.
template <int N>
__device__ inline void registers_up() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
/// setmaxnreg.dec: each thread has N registers, and gives the others back.
template <int N>
__device__ inline void registers_down() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

}  // namespace attune

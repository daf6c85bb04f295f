// codegen/cuda/ptx/thread.cuh — which lane a thread is, and its end
#pragma once

namespace attune {

/// %laneid, asked for anew each time: nothing made of it stays in registers from one call to the next.
__device__ inline int lane_asked() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// exit: this thread is done.
[[noreturn]] __device__ inline void leave() {
  asm volatile("exit;");
  __builtin_unreachable();
}

}  // namespace attune

// codegen/cuda/ptx/thread.cuh — which lane a thread is, and its end
#pragma once

namespace attune {

/// %laneid, read anew each time, so that no value computed from it stays in registers between calls.
__device__ inline int lane_asked() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

/// exit: ends this thread.
[[noreturn]] __device__ inline void leave() {
  asm volatile("exit;");
  __builtin_unreachable();
}

}  // namespace attune

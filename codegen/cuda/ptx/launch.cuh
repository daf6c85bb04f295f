// codegen/cuda/ptx/launch.cuh — kernels of a call that start before the kernel before them has ended
//
// A kernel that is launched early starts once every block of the one before it has said so or ended. In each of its
// blocks a thread waits for that kernel, if only at the end: the next kernel takes its end for that of all before.
#pragma once

namespace attune {

/// The next kernel may start, and will wait.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the kernel before has ended and its writes are visible, where this one was started early.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attune

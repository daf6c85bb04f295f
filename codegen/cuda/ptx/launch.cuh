// codegen/cuda/ptx/launch.cuh — kernels of a call that start before the kernel before them has ended
//
// A kernel that is launched early starts once every block of the previous kernel has called let_next_start() or ended.
// At least one of its blocks waits for that kernel, if only at the end, because the kernel after it waits for it alone.
#pragma once

namespace attune {

/// The next kernel may start, and will wait.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the previous kernel has ended and its writes are visible, if this kernel was started early.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace attune

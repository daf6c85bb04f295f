// codegen/cuda/emulated/ptx/launch.cuh — kernels of a call that start before the kernel before them has ended
#pragma once

namespace attune {

inline void let_next_start(Site at = Site::here()) {
  if constexpr (__CUDA_ARCH__ >= 900) attune_machine->let_next_start(at);
}
/// Takes no place in the source, because it is passed on as a function.
inline void wait_for_kernel_before() {
  if constexpr (__CUDA_ARCH__ >= 900) attune_machine->wait_for_kernel_before({});
}

}  // namespace attune

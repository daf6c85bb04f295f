// codegen/cuda/companions/clear.cuh — sets a call's counters to 0, while the kernel that counts with them starts
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

__global__ void __launch_bounds__(clear_threads) clear(const __grid_constant__ ClearArgs args) {
  let_next_start();
  wait_for_kernel_before();
  for (int i = static_cast<int>(threadIdx.x); i < args.count; i += clear_threads) args.first[i] = 0;
}

}  // namespace attune

// codegen/cuda/ops.cuh — one function per op that is not a C++ operator
#pragma once

namespace attune {
__device__ inline int min(int a, int b) { return a < b ? a : b; }
__device__ inline int max(int a, int b) { return a > b ? a : b; }
}  // namespace attune

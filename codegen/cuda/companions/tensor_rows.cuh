// codegen/cuda/companions/tensor_rows.cuh — the rows of RowsArgs: how many, and where each begins
#pragma once

#include "codegen/cuda/contract/args.cuh"

namespace attune {

/// The row of this warp; blocks have rows_of_copy warps.
__device__ inline long long row_of_warp() {
  return static_cast<long long>(blockIdx.x) * rows_of_copy + threadIdx.x / 32;
}
__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

__device__ inline long long rows_of(const RowsArgs& args) { return args.extent[0] * args.extent[1] * args.extent[2]; }
__device__ inline long long row_at(const RowsArgs& args, const long long* stride, long long row) {
  const long long before = row / args.extent[2];
  return row % args.extent[2] * stride[2] + before % args.extent[1] * stride[1] + before / args.extent[1] * stride[0];
}

}  // namespace attune

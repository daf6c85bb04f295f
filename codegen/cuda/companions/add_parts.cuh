// codegen/cuda/companions/add_parts.cuh — sums of the parts that ranks or launches have computed of a tensor, in their
// order
//
// One warp per row, rows_of_copy rows per block. Sums are in double precision and rounded once.
#pragma once

#include "codegen/cuda/companions/elements.cuh"

namespace attune {

__global__ void __launch_bounds__(32 * rows_of_copy, 4) add_parts(const __grid_constant__ AddArgs args) {
  const long long row = row_of_warp();
  if (row >= rows_of(args)) return;
  const long long from = row_at(args, args.from_stride, row), to = row_at(args, args.to_stride, row);
  for (long long i = lane_of_warp(); i < args.extent[3]; i += 32) {
    const long long at = to + i * args.to_stride[3];
    double sum = args.adds ? element(args.to, at, args.type) : 0;
    for (int part = 0; part < args.parts; ++part)
      sum += element(args.from, from + i * args.from_stride[3] + part * args.part_stride, args.from_type);
    store(args.to, at, args.type, sum);
  }
}

}  // namespace attune

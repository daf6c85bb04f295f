// codegen/cuda/companions/copy_rows.cuh — copies a tensor to another of the same shape and type, for any strides
//
// One warp per row, rows_of_copy rows per block.
#pragma once

#include "codegen/cuda/companions/elements.cuh"

namespace attune {

template <class Word>
__device__ inline void copy_row(const RowsArgs& args, long long from, long long to, int lane) {
  const auto* source = static_cast<const Word*>(args.from) + from;
  auto* target = static_cast<Word*>(args.to) + to;
  const long long last = args.extent[3];
  for (long long i = lane; i < last; i += 32) target[i * args.to_stride[3]] = source[i * args.from_stride[3]];
}

/// Extents and strides count words of `bytes` bytes, which may hold several elements.
__global__ void __launch_bounds__(32 * rows_of_copy, 4) copy_rows(const __grid_constant__ RowsArgs args) {
  const long long row = row_of_warp();
  if (row >= rows_of(args)) return;
  const int lane = lane_of_warp();
  const long long from = row_at(args, args.from_stride, row), to = row_at(args, args.to_stride, row);
  switch (args.bytes) {
    case 16: return copy_row<uint4>(args, from, to, lane);
    case 8: return copy_row<uint2>(args, from, to, lane);
    case 4: return copy_row<unsigned>(args, from, to, lane);
    case 2: return copy_row<unsigned short>(args, from, to, lane);
    default: return copy_row<unsigned char>(args, from, to, lane);
  }
}

}  // namespace attune

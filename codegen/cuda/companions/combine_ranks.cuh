// codegen/cuda/companions/combine_ranks.cuh — results over the keys of each rank become those over all keys, in the
// order of ranks
//
// One warp per row of a head, rows_of_copy rows per block.
#pragma once

#include "codegen/cuda/companions/elements.cuh"
#include "codegen/cuda/parts/row.cuh"

namespace attune {

__global__ void __launch_bounds__(32 * rows_of_copy, 4) combine_ranks(const __grid_constant__ CombineArgs args) {
  const long long row = row_of_warp();
  if (row >= static_cast<long long>(args.batch) * args.heads * args.rows) return;
  const int lane = lane_of_warp(), position = static_cast<int>(row % args.rows),
            head = static_cast<int>(row / args.rows % args.heads), b = static_cast<int>(row / args.rows / args.heads);
  const long long of_part = static_cast<long long>(args.batch) * args.heads * args.rows;
  float top = -infinity, most = -infinity;
  bool nan = false, max_nan = false;
  for (int part = 0; part < args.parts; ++part) {
    const float lse = args.lse_parts[part * of_part + row],
                max = args.max_parts ? args.max_parts[part * of_part + row] : 0;
    nan = nan || lse != lse;
    max_nan = max_nan || max != max;
    top = fmaxf(top, lse);
    most = fmaxf(most, max);
  }
  float sum = 0;
  for (int part = 0; part < args.parts; ++part) {
    const float lse = args.lse_parts[part * of_part + row];
    sum += lse == -infinity ? 0.0f : lse == top ? 1.0f : expf(lse - top);
  }
  const float none = __int_as_float(0x7fffffff);
  for (int i = lane; i < args.dv; i += 32) {
    float o = 0;
    for (int part = 0; part < args.parts; ++part) {
      const float lse = args.lse_parts[part * of_part + row];
      if (lse == -infinity) continue;
      o += args.o_parts[(part * of_part + row) * args.dv + i] * ((lse == top ? 1.0f : expf(lse - top)) / sum);
    }
    if (nan) o = none;
    store(args.o.data, b * args.o.batch + head * args.o.head + position * args.o.position + i * args.o.element,
          args.o_type, static_cast<double>(o));
  }
  if (lane != 0) return;
  if (args.lse.data)
    args.lse.data[b * args.lse.batch + head * args.lse.head + position * args.lse.position] = nan ? none
                                                                                              : top == -infinity
                                                                                                  ? top
                                                                                                  : top + logf(sum);
  if (args.max.data)
    args.max.data[b * args.max.batch + head * args.max.head + position * args.max.position] = max_nan ? none : most;
}

}  // namespace attune

// codegen/cuda/kernels/sum_sinks.cuh — gradients of the captured tensors that a sink reads, from each row's lse and
// delta
//
// A sink has no value, so its gradient is its probability times -delta. Runs after kernels that do not add it up
// themselves. Tile: that kernel's. Blocks: (sum_sinks_rows rows, head, batch entry), a row a thread in turn.
#pragma once

#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/ptx/launch.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(sum_sinks_threads)
    sum_sinks(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  wait_for_kernel_before();
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const Entry entry = entry_of<Tile>(args, b);
  const Range queries = entry.queries;
  const Where at = entry.at(b, h);
  const int first = static_cast<int>(blockIdx.x) * sum_sinks_rows, end = min(first + sum_sinks_rows, queries.length);
  if (first >= end) return;
  const auto head = user.head(at);
  const float sink = user.sink(head, at);
  if (sink == -infinity) return;
  float sum = 0;
  for (int q = first + static_cast<int>(threadIdx.x); q < end; q += sum_sinks_threads) {
    const int position = queries.start + q;
    sum -= power_of_two((sink - *row_of(args.lse, b, h, position)) * (1 / ln2)) * *row_of(args.delta, b, h, position);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) user.by_sink(sum, head, at);
}

}  // namespace attune

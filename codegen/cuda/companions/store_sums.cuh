// codegen/cuda/companions/store_sums.cuh — exact sums as the elements of a tensor, rounded once
//
// One thread per element, sums_threads threads per block.
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/types.cuh"
#include "codegen/cuda/parts/exact_sum.cuh"

namespace attune {

__global__ void __launch_bounds__(sums_threads) store_sums(const __grid_constant__ SumsArgs args) {
  const long long i = static_cast<long long>(blockIdx.x) * sums_threads + threadIdx.x;
  if (i >= args.count) return;
  long long left = i, offset = 0;
#pragma unroll
  for (int d = SumsArgs::most_rank - 1; d >= 0; --d) {
    offset += left % args.extent[d] * args.stride[d];
    left /= args.extent[d];
  }
  const double value = exact_value(args.sums + i * exact_words);
  const auto rounded = static_cast<float>(value);
  if (args.type == Stored::f32)
    static_cast<float*>(args.to)[offset] = rounded;
  else
    static_cast<unsigned short*>(args.to)[offset] = static_cast<unsigned short>(
        args.type == Stored::bf16 ? pack<bf16>(rounded, 0) : pack<f16>(rounded, 0));
}

}  // namespace attune

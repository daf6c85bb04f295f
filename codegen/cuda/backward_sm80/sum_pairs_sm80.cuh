// codegen/cuda/backward_sm80/sum_pairs_sm80.cuh — sums the terms of captured tensors' gradients, by query and pair by
// pair, that a kernel of a whole backward does not sum
//
// It recomputes S and dP, two of the seven products of the portable kernels, and runs after the backward, whose lse and
// delta it reads. Masked-out pairs add nothing, even if their operands are NaN. Its tile and shared memory are those of
// queries_sm80.cuh; each block has a tile of queries of one head and batch entry.
#pragma once

#include "codegen/cuda/backward_sm80/queries_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32)
    sum_pairs_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  __shared__ StaticLine memory[SharedQueries80<Tile>::at.bytes / sizeof(StaticLine)];
  wait_for_kernel_before();
  using Queries = Queries80<Tile, User>;
  Queries(args, user, static_cast<unsigned>(__cvta_generic_to_shared(memory)))
      .template sum_once_more<Queries::Pass::terms>();
}

}  // namespace attune

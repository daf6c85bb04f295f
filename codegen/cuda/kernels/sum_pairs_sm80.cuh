// codegen/cuda/kernels/sum_pairs_sm80.cuh — terms of captured tensors' gradients that a kernel of a whole backward does
// not sum: by query, and pair by pair
//
// Computes S and dP again, two of the seven products that the portable kernels take. Runs after the kernel of a whole
// backward, whose lse and delta it reads; masked-out pairs add nothing, whatever their operands hold. Tile: of
// queries_sm80.cuh, with its shared memory, one block per tile of queries, head and batch entry.
#pragma once

#include "codegen/cuda/kernels/queries_sm80.cuh"
#include "codegen/cuda/ptx/launch.cuh"

namespace attune {

struct alignas(128) Line {
  uint4 units[8];
};

template <class Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32)
    sum_pairs_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  static_assert(!User::traits.listed, "its tiles would need lists of their own");
  __shared__ Line memory[SharedQueries80<Tile>::bytes / sizeof(Line)];
  wait_for_kernel_before();
  Queries80<Tile, User>(args, user, static_cast<unsigned>(__cvta_generic_to_shared(memory))).sum_terms();
}

}  // namespace attune

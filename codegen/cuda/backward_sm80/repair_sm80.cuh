// codegen/cuda/backward_sm80/repair_sm80.cuh — recomputes gradients pair by pair, where masked-out pairs may have made
// them non-finite
//
// For kernels that multiply masked-out pairs by 0. Launched for every such call; its blocks end at once unless the
// previous kernel has set *args.non_finite. Tile: of keys_sm80.cuh and queries_sm80.cuh, 64 x 64. Blocks share the
// tiles of keys of all key heads (blockIdx.y 0) and the tiles of queries of all heads (1), 128 threads each: with one
// block per tile, ending at once took 5 us longer.
#pragma once

#include "codegen/cuda/backward_sm80/keys_sm80.cuh"
#include "codegen/cuda/backward_sm80/queries_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(repair_threads)
    repair_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  let_next_start();
  wait_for_kernel_before();
  if (*args.non_finite == 0) return;
  if (blockIdx.y == 0) {
    const long long sets = args.q_heads / args.group * (args.kv_shared ? 1 : args.batch),
                    blocks = sets * ((args.kv_len + Tile::n - 1) / Tile::n);
    for (long long block = blockIdx.x; block < blocks; block += gridDim.x)
      Keys80<Tile, User, 3>(args, user, 0, block).pair_by_pair();
  } else if (args.grad_q.to.data || User::gradient.by_diagonal > 0) {
    using Queries = Queries80<Tile, User>;
    const long long sets = static_cast<long long>(args.q_heads) * args.batch,
                    blocks = sets * ((args.q_len + Tile::m - 1) / Tile::m);
    for (long long block = blockIdx.x; block < blocks; block += gridDim.x)
      Queries(args, user, 0, Queries::place(args, block)).pair_by_pair();
  }
}

}  // namespace attune

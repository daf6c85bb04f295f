// codegen/cuda/repair_sm80.cuh — gradients once more, pair by pair, where removed pairs may have brought in what is not
// finite
//
// For kernels that multiply what masks remove by 0. A launch for every such call; its blocks end at once unless the
// kernel before it has set *args.odd. Tile: of keys_sm80.cuh and queries_sm80.cuh, 64 x 64. A block for each tile of
// keys of each key head (blockIdx.y 0) and for each tile of queries of each head (1), 128 threads.
#pragma once

#include "keys_sm80.cuh"
#include "queries_sm80.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(128)
    repair_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  if (*args.odd == 0) return;
  const long long block = blockIdx.x;
  if (blockIdx.y == 0) {
    const long long sets = args.q_heads / args.group * (args.kv_shared ? 1 : args.batch);
    if (block < sets * ((args.kv_len + Tile::n - 1) / Tile::n)) Keys80<Tile, User, 3>(args, user, 0).pair_by_pair();
  } else if (args.grad_q.to.data) {
    const long long sets = static_cast<long long>(args.q_heads) * args.batch;
    if (block < sets * ((args.q_len + Tile::m - 1) / Tile::m)) Queries80<Tile, User>(args, user, 0).pair_by_pair();
  }
}

}  // namespace attune

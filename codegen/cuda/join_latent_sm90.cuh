// codegen/cuda/join_latent_sm90.cuh — the parts of tiles whose keys several blocks of latent_sm90.cuh shared, added up
//
// A block takes rows of one unit of one tile: blockIdx.x counts join_slices slices of each unit of each cluster's cut
// tile. Most tiles are whole, and their blocks find nothing to do.
#pragma once

#include "early.cuh"
#include "latent_rows_sm90.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(join_threads)
    join_latent_sm90(const __grid_constant__ ArgsOf<Tile, LatentArgs> args, const __grid_constant__ User user) {
  wait_for_kernel_before();
  const int slice = static_cast<int>(blockIdx.x) % join_slices, unit = static_cast<int>(blockIdx.x) / join_slices,
            rank = unit % Tile::cluster;
  const CutTile cut = args.cut[unit / Tile::cluster];
  if (cut.count < 2) return;
  const auto of = LatentTile<Tile>::template of<Tile>(args, cut.tile);
  const LatentRows<Tile, User> rows(args, user, of, rank);
  constexpr int each = Tile::m / join_slices, fours = Tile::dv / 4;
  __shared__ float before[each];
  if constexpr (has_before<Tile>) {
    if (threadIdx.x < each) before[threadIdx.x] = rows.before(slice * each + static_cast<int>(threadIdx.x));
    __syncthreads();
  }
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < each * fours; i += join_threads) {
    const int nth = i / fours, row = slice * each + nth, column = i % fours * 4;
    if (!rows.exists(row)) continue;
    // Several parts are under way at a time.
    constexpr int batch = 8;
    PartOfRow all;
#pragma unroll 1
    for (int first = 0; first < cut.count; first += batch) {
      PartOfRow::Other some[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (const int part = first + j; part < cut.count) {
          float* const from = latent_part<Tile>(args, cut.first, part, rank);
          some[j] = {*reinterpret_cast<const float4*>(from + row * Tile::dv + column), parts_in<Tile>(from)[row]};
        }
      all.add(some);
    }
    rows.put(row, column, all.o, rows.end(row, all.part, has_before<Tile> ? before[nth] : 0.0f, column == 0));
  }
}

}  // namespace attune

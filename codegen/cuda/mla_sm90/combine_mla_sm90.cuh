// codegen/cuda/mla_sm90/combine_mla_sm90.cuh — split-KV combine of MLA: adds up the parts of tiles whose keys several
// blocks of mla_sm90.cuh shared
//
// Most tiles are whole. Each block finds the split ones and takes some of their rows: half of its threads add up the
// first parts, the other half the rest.
#pragma once

#include "codegen/cuda/mla_sm90/items.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

template <class Tile, class User>
__global__ void __launch_bounds__(combine_mla_threads)
    combine_mla_sm90(const __grid_constant__ ArgsOf<Tile, MlaArgs> args, const __grid_constant__ User user) {
  constexpr int fours = Tile::dv / 4, teams = combine_mla_threads / fours, unit_rows = Tile::m * Tile::cluster;
  static_assert(teams * fours == combine_mla_threads && teams == 2);
  __shared__ PartOfRow::Other met[fours];
  __shared__ int cuts[combine_mla_threads], warps[combine_mla_threads / 32];
  __shared__ float before;
  const int thread = static_cast<int>(threadIdx.x), team = thread / fours, column = thread % fours * 4;
  wait_for_kernel_before();
  // The clusters that begin a split tile, in order; all blocks get the same result.
  const bool begins = thread < args.cuts && args.cut[thread].count > 1;
  const unsigned of_warp = __ballot_sync(~0u, begins);
  if (thread % 32 == 0) warps[thread / 32] = __popc(of_warp);
  __syncthreads();
  int count = 0, nth = __popc(of_warp & ((1u << thread % 32) - 1));
#pragma unroll
  for (int i = 0; i < combine_mla_threads / 32; ++i) {
    if (i < thread / 32) nth += warps[i];
    count += warps[i];
  }
  if (begins) cuts[nth] = thread;
  __syncthreads();
#pragma unroll 1
  for (int i = static_cast<int>(blockIdx.x); i < count * unit_rows; i += static_cast<int>(gridDim.x)) {
    const CutTile cut = args.cut[cuts[i / unit_rows]];
    const int rank = i % unit_rows / Tile::m, row = i % Tile::m;
    const auto of = MlaTile<Tile>::template of<Tile>(args, cut.tile);
    const MlaRows<Tile, User> rows{args, user, of, of.unit(rank)};
    if (!rows.exists(row)) continue;
    const int half = (cut.count + 1) / 2, end = team == 0 ? half : cut.count;
    PartOfRow all;
    // Several parts load at a time.
    constexpr int batch = 8;
#pragma unroll 1
    for (int first = team * half; first < end; first += batch) {
      PartOfRow::Other some[batch];
#pragma unroll
      for (int j = 0; j < batch; ++j)
        if (const int part = first + j; part < end) {
          float* const from = mla_part<Tile>(args, cut.first, part, rank);
          some[j] = {*reinterpret_cast<const float4*>(from + row * Tile::dv + column), parts_in<Tile>(from)[row]};
        }
      all.add<User>(some);
    }
    __syncthreads();  // `met` of the previous round has been read
    if (team == 1) met[thread % fours] = {{all.o[0], all.o[1], all.o[2], all.o[3]}, all.part};
    if (thread == 0) before = rows.before(row);
    __syncthreads();
    if (team == 1) continue;
    const PartOfRow::Other others[1] = {met[thread]};
    all.add<User>(others);
    rows.put(row, column, all.o, rows.end(row, all.part, before, column == 0));
  }
}

}  // namespace attune

// codegen/cuda/backward_wide_sm90/split_rows_sm90.cuh — q, k, v and grad_o of a call of f32 as numbers of f16 in
// memory, before keys_f32_sm90.cuh and queries_f32_sm90.cuh
//
// A warp splits one row at a time: a power of two brings its largest number into [2^14, 2^15), and is stored as the
// row's factor. Each number is rounded to f16; with two parts, 2^11 times what rounding cut off follows, rounded too.
// Columns come in chunks of 64: those of the numbers, then those of the rests.
#pragma once

#include "codegen/cuda/backward_wide_sm90/split.cuh"

namespace attune {

/// blockIdx.y: which tensor.
template <class Tile>
requires(Tile::d % 64 == 0 && Tile::dv % 64 == 0 && (Tile::parts == 1 || Tile::parts == 2)) __global__
    void __launch_bounds__(split_threads) split_rows_sm90(const __grid_constant__ SplitRowsArgs args) {
  constexpr int warps = split_threads / 32;
  const bool of_values = blockIdx.y > 1;
  const SplitRows& of = blockIdx.y == 0 ? args.q : blockIdx.y == 1 ? args.k : blockIdx.y == 2 ? args.v : args.grad_o;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32, column = 4 * lane,
            columns = of_values ? Tile::dv : Tile::d;
  const long long all = static_cast<long long>(of.batch) * of.heads * of.lines;
  bool odd = false;
#pragma unroll 2
  for (int i = 0; i < split_rows_each; ++i) {
    const long long line = (static_cast<long long>(blockIdx.x) * split_rows_each + i) * warps + warp;
    if (line >= all) break;
    const int position = static_cast<int>(line % of.lines);
    const long long set = line / of.lines;
    if (position >= of.length) {
      if (lane == 0) of.factors[line] = 1;
      continue;
    }
    const float* const row = static_cast<const float*>(of.from.data) + set / of.heads * of.from.batch +
                             set % of.heads * of.from.head + position * of.from.position;
    float x[4] = {};
    if (column + 4 <= of.width) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(row + column));
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (column + j < of.width) x[j] = __ldg(row + column + j);
    }
    // The bits of magnitudes are in the order of their values, and NaN is above all.
    unsigned most = 0;
#pragma unroll
    for (const float one : x) most = larger(most, __float_as_uint(one) & 0x7fffffffu);
    most = __reduce_max_sync(~0u, most);
    odd |= most >= most_split;
    const Scaling scaling(most);
    if (lane == 0) of.factors[line] = scaling.back;
    if (column >= columns) continue;
    const SplitPair low(x[0] * scaling.to, x[1] * scaling.to), high(x[2] * scaling.to, x[3] * scaling.to);
    unsigned short* const to = of.to + (set * of.length + position) * (Tile::parts * columns) +
                               column / 64 * (64 * Tile::parts) + column % 64;
    *reinterpret_cast<uint2*>(to) = {low.number, high.number};
    if constexpr (Tile::parts == 2) *reinterpret_cast<uint2*>(to + 64) = {low.rest, high.rest};
  }
  if (odd && lane == 0) *args.non_finite = 1;
}

}  // namespace attune

// codegen/cuda/rows.cuh — what the backward must know of a row before any pair: its delta
//
// Tile: Element (bf16, f16, float) of grad_o, Out (also another of these) of o; width_v columns; layout; of_o: delta is
// the product of o and grad_o, else a kernel that walks the row adds to what is left here. A warp for each row of each
// head of each batch entry, rows_threads threads a block, blocks of one head after another.
#pragma once

#include "backward_sm80.cuh"

namespace attune {

/// o . grad_o, in every lane.
template <class Tile>
__device__ inline float product_of_rows(const BackwardArgs& args, int b, int h, int start, int q) {
  const Rows80 o = rows_of<typename Tile::Out>(args.o, b, h, start),
               grad_o = rows_of<typename Tile::Element>(args.grad_o, b, h, start);
  float sum = 0;
  for (int column = static_cast<int>(threadIdx.x) % 32; column < Tile::width_v; column += 32)
    sum += element<typename Tile::Out>(o, q, column) * element<typename Tile::Element>(grad_o, q, column);
  return warp_sum(sum);
}

template <class Tile>
__global__ void __launch_bounds__(rows_threads) rows(const __grid_constant__ BackwardArgs args) {
  constexpr int at_once = rows_threads / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, tiles = (args.q_len + at_once - 1) / at_once,
            head = static_cast<int>(blockIdx.x) / tiles, b = head / args.q_heads, h = head % args.q_heads;
  const Stretch queries = stretch<Tile>(args.q_starts, b, args.q_len);
  const int q = static_cast<int>(blockIdx.x) % tiles * at_once + static_cast<int>(threadIdx.x) / 32;
  if (q >= queries.length) return;
  float sum = 0;
  if constexpr (Tile::of_o) sum = product_of_rows<Tile>(args, b, h, queries.start, q);
  if (lane != 0) return;
  if (args.grad_lse.data) sum -= *row_of(args.grad_lse, b, h, queries.start + q);
  *row_of(args.delta, b, h, queries.start + q) = sum;
}

}  // namespace attune

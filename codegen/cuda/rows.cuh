// codegen/cuda/rows.cuh — what the backward must know of a row before any pair: its delta
//
// Tile: Element (bf16, f16, float) of grad_o, Out (also another of these) of o; width_v columns; layout. A warp for
// each row of each head of each batch entry, rows_threads threads a block.
#pragma once

#include "lines.cuh"
#include "walk.cuh"

namespace attune {

constexpr int rows_threads = 256;

/// An element of a tensor.
template <class Element>
__device__ inline float element(const Rows80& rows, int position, int column) {
  const char* at = rows.data + position * rows.position + column * rows.element;
  return f32(*reinterpret_cast<const Element*>(at));
}
template <>
__device__ inline float element<float>(const Rows80& rows, int position, int column) {
  return *reinterpret_cast<const float*>(rows.data + position * rows.position + column * rows.element);
}

__device__ inline float* row_of(const Rows& rows, int b, int h, int position) {
  return rows.data + b * rows.batch + h * rows.head + position * rows.position;
}

template <class Tile>
__global__ void __launch_bounds__(rows_threads) rows(const __grid_constant__ BackwardArgs args) {
  const int lane = static_cast<int>(threadIdx.x) % 32, b = static_cast<int>(blockIdx.z),
            h = static_cast<int>(blockIdx.y);
  const Stretch queries = stretch<Tile>(args.q_starts, b, args.q_len);
  const int q = static_cast<int>(blockIdx.x) * (rows_threads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (q >= queries.length) return;
  const Rows80 o = rows_of<typename Tile::Out>(args.o, b, h, queries.start),
               grad_o = rows_of<typename Tile::Element>(args.grad_o, b, h, queries.start);
  float sum = 0;
  for (int column = lane; column < Tile::width_v; column += 32)
    sum += element<typename Tile::Out>(o, q, column) * element<typename Tile::Element>(grad_o, q, column);
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);
  if (lane != 0) return;
  if (args.grad_lse.data) sum -= *row_of(args.grad_lse, b, h, queries.start + q);
  *row_of(args.delta, b, h, queries.start + q) = sum;
}

}  // namespace attune

// codegen/cuda/rows.cuh — what the backward must know of a row before any pair: its delta
//
// Tile: Element (bf16, f16, float) of grad_o, Out (also another of these) of o; width_v columns; layout; of_o: delta is
// the product of o and grad_o, else a kernel that walks the row adds to what is left here. rows_lanes threads for each
// row of each head of each batch entry, rows_threads a block, blocks of one head after another.
#pragma once

#include "backward_sm80.cuh"

namespace attune {

/// Four neighbours of a row, which lie side by side and may be read at once.
template <class Element>
__device__ inline float4 four(const Rows80& rows, int position, int column) {
  const char* at = rows.data + position * rows.position + column * ElementOf<Element>::bytes;
  if constexpr (ElementOf<Element>::bytes == 4) {
    return __ldg(reinterpret_cast<const float4*>(at));
  } else {
    const uint2 x = __ldg(reinterpret_cast<const uint2*>(at));
    return {low_of<Element>(x.x), high_of<Element>(x.x), low_of<Element>(x.y), high_of<Element>(x.y)};
  }
}
template <class Element>
__device__ inline bool has_fours(const Rows80& rows) {
  constexpr int size = ElementOf<Element>::bytes;
  return rows.element == size && (reinterpret_cast<unsigned long long>(rows.data) | rows.position) % (4 * size) == 0;
}

/// o . grad_o, in each of the row's lanes. An element at a time this took 84 us for 16384 tokens of 2048 columns, where
/// reading them takes 31.
template <class Tile>
__device__ inline float product_of_rows(const BackwardArgs& args, int b, int h, int start, int q, int lane) {
  using Out = typename Tile::Out;
  using Element = typename Tile::Element;
  const Rows80 o = rows_of<Out>(args.o, b, h, start), grad_o = rows_of<Element>(args.grad_o, b, h, start);
  float sum = 0;
  if (Tile::width_v % 4 == 0 && has_fours<Out>(o) && has_fours<Element>(grad_o)) {
#pragma unroll
    for (int column = 4 * lane; column < Tile::width_v; column += 4 * rows_lanes) {
      const float4 x = four<Out>(o, q, column), y = four<Element>(grad_o, q, column);
      sum += x.x * y.x + x.y * y.y + (x.z * y.z + x.w * y.w);
    }
  } else {
    for (int column = lane; column < Tile::width_v; column += rows_lanes)
      sum += element<Out>(o, q, column) * element<Element>(grad_o, q, column);
  }
  const unsigned together = ((1u << rows_lanes) - 1) << (threadIdx.x & 32 - rows_lanes);
#pragma unroll
  for (int apart = rows_lanes / 2; apart > 0; apart /= 2) sum += __shfl_xor_sync(together, sum, apart);
  return sum;
}

template <class Tile>
__global__ void __launch_bounds__(rows_threads) rows(const __grid_constant__ BackwardArgs args) {
  constexpr int at_once = rows_threads / rows_lanes;
  const int lane = static_cast<int>(threadIdx.x) % rows_lanes, tiles = (args.q_len + at_once - 1) / at_once,
            head = static_cast<int>(blockIdx.x) / tiles, b = head / args.q_heads, h = head % args.q_heads;
  const Stretch queries = stretch<Tile>(args.q_starts, b, args.q_len);
  const int q = static_cast<int>(blockIdx.x) % tiles * at_once + static_cast<int>(threadIdx.x) / rows_lanes;
  if (q >= queries.length) return;
  float sum = 0;
  if constexpr (Tile::of_o) sum = product_of_rows<Tile>(args, b, h, queries.start, q, lane);
  if (lane != 0) return;
  if (args.grad_lse.data) sum -= *row_of(args.grad_lse, b, h, queries.start + q);
  *row_of(args.delta, b, h, queries.start + q) = sum;
}

}  // namespace attune

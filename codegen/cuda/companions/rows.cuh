// codegen/cuda/companions/rows.cuh — the backward's preprocess: delta of each row, degree * sum(o * grad_o) - grad_lse
//
// rows_lanes threads per row of each head and batch entry, rows_each rows one after another, rows_threads per block;
// blocks of one head follow one another.
#pragma once

#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

template <class Tile>
concept RowsTile = requires {
  // Element: of grad_o; Out: of o. Each is bf16, f16 or float.
  requires ElementOf<typename Tile::Element>::bytes >= 2 && sizeof(typename Tile::Out) >= 2;
  Layout(Tile::layout);
  int(Tile::width_v);
  // Delta is the product of o and grad_o times this; 0: a kernel that iterates over the row adds to what is stored
  // here.
  float(Tile::degree);
};

/// Count neighbours of a row, which are contiguous and can be read at once, or 16 bytes at a time.
template <int Count>
struct Neighbours {
  float x[Count];
};
template <int Count, class Element>
__device__ inline Neighbours<Count> neighbours(const Rows80& rows, int position, int column) {
  const char* at = rows.data + position * rows.position + column * ElementOf<Element>::bytes;
  Neighbours<Count> out;
  if constexpr (ElementOf<Element>::bytes == 4) {
#pragma unroll
    for (int i = 0; i < Count; i += 4) {
      const float4 x = __ldg(reinterpret_cast<const float4*>(at) + i / 4);
      out.x[i] = x.x, out.x[i + 1] = x.y, out.x[i + 2] = x.z, out.x[i + 3] = x.w;
    }
  } else {
    unsigned pairs[Count / 2];
    if constexpr (Count == 8) {
      const uint4 x = __ldg(reinterpret_cast<const uint4*>(at));
      pairs[0] = x.x, pairs[1] = x.y, pairs[2] = x.z, pairs[3] = x.w;
    } else {
      const uint2 x = __ldg(reinterpret_cast<const uint2*>(at));
      pairs[0] = x.x, pairs[1] = x.y;
    }
#pragma unroll
    for (int i = 0; i < Count; i += 2)
      out.x[i] = low_of<Element>(pairs[i / 2]), out.x[i + 1] = high_of<Element>(pairs[i / 2]);
  }
  return out;
}
template <int Count, class Element>
__device__ inline bool has_neighbours(const Rows80& rows) {
  constexpr int size = ElementOf<Element>::bytes, bytes = Count * size < 16 ? Count * size : 16;
  return rows.element == size && (reinterpret_cast<unsigned long long>(rows.data) | rows.position) % bytes == 0;
}

/// Adds this thread's part of o . grad_o for each of its rows, from q on. Missing rows read the last row instead, so no
/// read waits for another. One element at a time took 84 us for 16384 tokens of 2048 columns, four at a time 38 us;
/// reading alone takes 31 us.
template <class Tile>
__device__ inline void products_of_rows(float (&sums)[rows_each], const BackwardArgs& args, int b, int h, Range of,
                                        int q, int lane) {
  using Out = typename Tile::Out;
  using Element = typename Tile::Element;
  constexpr int lanes = rows_lanes(Tile::width_v), stride = rows_threads / lanes,
                at_once = Tile::width_v % 8 == 0 ? 8 : 4;
  const Rows80 o = rows_of<Out>(args.o, b, h, of.start), grad_o = rows_of<Element>(args.grad_o, b, h, of.start);
  if (Tile::width_v % at_once == 0 && has_neighbours<at_once, Out>(o) && has_neighbours<at_once, Element>(grad_o)) {
#pragma unroll
    for (int column = at_once * lane; column < Tile::width_v; column += at_once * lanes)
#pragma unroll
      for (int i = 0; i < rows_each; ++i) {
        const int row = min(q + i * stride, of.length - 1);
        const auto x = neighbours<at_once, Out>(o, row, column), y = neighbours<at_once, Element>(grad_o, row, column);
#pragma unroll
        for (int j = 0; j < at_once; j += 4)
          sums[i] += x.x[j] * y.x[j] + x.x[j + 1] * y.x[j + 1] + (x.x[j + 2] * y.x[j + 2] + x.x[j + 3] * y.x[j + 3]);
      }
  } else {
    for (int column = lane; column < Tile::width_v; column += lanes)
#pragma unroll
      for (int i = 0; i < rows_each; ++i) {
        const int row = min(q + i * stride, of.length - 1);
        sums[i] += element<Out>(o, row, column) * element<Element>(grad_o, row, column);
      }
  }
}

template <RowsTile Tile>
__global__ void __launch_bounds__(rows_threads) rows(const __grid_constant__ BackwardArgs args) {
  let_next_start();
  constexpr int lanes = rows_lanes(Tile::width_v), stride = rows_threads / lanes,
                of_block = rows_of_block(Tile::width_v);
  const int lane = static_cast<int>(threadIdx.x) % lanes, tiles = (args.q_len + of_block - 1) / of_block,
            head = static_cast<int>(blockIdx.x) / tiles, b = head / args.q_heads, h = head % args.q_heads;
  const Range queries = entry_of<Tile>(args, b).queries;
  const int first = static_cast<int>(blockIdx.x) % tiles * of_block, q = first + static_cast<int>(threadIdx.x) / lanes;
  if (first >= queries.length) return;
  float sums[rows_each] = {};
  if constexpr (Tile::degree != 0) products_of_rows<Tile>(sums, args, b, h, queries, q, lane);
#pragma unroll
  for (int i = 0; i < rows_each; ++i) {
#pragma unroll
    for (int other = lanes / 2; other > 0; other /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], other);
    if (lane != 0 || q + i * stride >= queries.length) continue;
    const int position = queries.start + q + i * stride;
    if constexpr (Tile::degree != 1) sums[i] *= Tile::degree;
    if (args.grad_lse.data) sums[i] -= *row_of(args.grad_lse, b, h, position);
    *row_of(args.delta, b, h, position) = sums[i];
  }
}

}  // namespace attune

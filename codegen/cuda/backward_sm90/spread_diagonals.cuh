// codegen/cuda/backward_sm90/spread_diagonals.cuh — adds sums along diagonals to captured tensors whose index depends
// on q - kv
//
// Runs after kernels that sum along diagonals, and after their repair. Tile: that kernel's. One thread per distance
// q - kv: (diagonals_threads distances, head, batch entry).
#pragma once

#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/exact_sum.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// A Mod with terms by diagonals. A sum is handed on with any pair of its distance. Where a call is recomputed, each
/// pair adds to its own places instead.
template <class M>
concept SumsDiagonals = Differentiable<M> && requires(const M m, Where at, typename M::Head head, typename M::Row row,
                                                      typename M::Col col, float x, Int i, Flow flow) {
  m.diagonals[0];                                                  // the sums
  m.by_diagonal(x, head, row, col, at, i, i);                      // a sum, …, q, kv
  m.by_pair_of_diagonal(flow, x, x, head, row, col, at, i, i, i);  // flow, s, p, …, origin, q, kv
};

/// Sums for a tile of keys and a head of queries: place x has distance x - n, where positions count from the first
/// query and from the tile's first key. Places that no tile of queries met stay 0.
template <class Tile>
__device__ inline int diagonal_stride(const BackwardArgs& args) {
  return (args.q_len + Tile::m - 1) / Tile::m * Tile::m + Tile::n;
}
template <class Tile, class User>
__device__ inline float* diagonals_of(const BackwardArgs& args, const User& user, int b, int h, int tile) {
  const int set = is_packed<Tile> ? h : b * args.q_heads + h,
            place = is_packed<Tile> ? place_of<Tile::n>(args.kv_starts, b) + tile : tile;
  return user.diagonals + (static_cast<long long>(set) * args.kv_places + place) * diagonal_stride<Tile>(args);
}

template <class Tile, class User>
__global__ void __launch_bounds__(diagonals_threads)
    spread_diagonals(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  static_assert(SumsDiagonals<User>);
  wait_for_kernel_before();
  // The repair has added the terms pair by pair.
  if (*args.non_finite) return;
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const Entry entry = entry_of<Tile>(args, b);
  const Where at = entry.at(b, h);
  if (at.q_len == 0 || at.kv_len == 0) return;
  // Four distances whose places are contiguous: the first place is a multiple of 4.
  const int least = 1 - at.kv_len, stride = diagonal_stride<Tile>(args), tiles = (at.kv_len + Tile::n - 1) / Tile::n,
            first = (least & ~3) + 4 * static_cast<int>(blockIdx.x * diagonals_threads + threadIdx.x);
  const float* const from = diagonals_of<Tile>(args, user, b, h, 0);
  // Tiles that have this place: first + n (tile + 1) is from 0 to stride.
  const int begin = max(0, (Tile::n - 1 - first) / Tile::n - 1), end = min(tiles, (stride - 1 - first) / Tile::n);
  double sums[4] = {};
#pragma unroll 8
  for (int tile = begin; tile < end; ++tile) {
    const float4 x = __ldg(
        reinterpret_cast<const float4*>(from + static_cast<long long>(tile) * stride + first + (tile + 1) * Tile::n));
    sums[0] += static_cast<double>(x.x), sums[1] += static_cast<double>(x.y);
    sums[2] += static_cast<double>(x.z), sums[3] += static_cast<double>(x.w);
  }
  const auto head = user.head(at);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const bool there = first + i >= least && first + i < at.q_len;
    // Any pair of this distance will do.
    const int distance = min(max(first + i, least), at.q_len - 1), key = max(0, -distance);
    const Int q = entry.query(distance + key), kv = entry.key(key);
    user.by_diagonal(there ? static_cast<float>(sums[0]) : 0.0f, head, user.row(head, at, q),
                     user.col(head, at, entry.query(0), kv), at, q, kv);
    sums[0] = sums[1], sums[1] = sums[2], sums[2] = sums[3];
  }
}

}  // namespace attune

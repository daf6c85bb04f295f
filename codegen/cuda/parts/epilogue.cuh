// codegen/cuda/parts/epilogue.cuh — the end of a row: divides by its sum, merges results over other keys, and stores
#pragma once

#include "codegen/cuda/parts/before.cuh"

namespace attune {

/// The factors of a row's result: o = (sum * factor) * own + before * o_before. `factor` and `own` are separate, so
/// that a row without pairs gives 0 whatever its sums are.
struct Finished {
  float factor, own, before;
  float lse;  ///< of all keys
};

/// Ends a row that has `lse_before` over other keys; ignored by Tiles without o_before.
template <class Tile>
__device__ inline Finished finish(const Ended& row, float lse_before) {
  if constexpr (!has_before<Tile>) return {row.factor, 1, 0, row.lse};
  const Merged with = merged(row.lse, lse_before);
  return {row.factor, with.own, with.before, with.lse};
}

/// A column of a row's results. o_before is read only if its factor is not 0 and the column exists, because it may
/// otherwise hold anything.
template <class Tile, class Args>
__device__ inline float result(const Args& args, const Finished& by, float sum, int b, int h, int position,
                               int column) {
  if constexpr (!has_before<Tile>) return by.factor == 0.0f ? 0.0f : sum * by.factor;
  float out = by.factor == 0.0f ? 0.0f : sum * by.factor * by.own;
  if (by.before != 0.0f && column < Tile::width_v) out += by.before * o_before(args, b, h, position, column);
  return out;
}

/// Stores a number of a row, lse or max, if the call asks for it.
__device__ inline void put_of_row(const Rows& rows, int b, int h, int position, float x) {
  if (rows.data) rows.data[b * rows.batch + h * rows.head + position * rows.position] = x;
}

/// True if a row of results has this column. If Tile::dv is rounded up, Tile::width_v is the width.
template <class Tile>
__device__ constexpr bool has_column(int column) {
  if constexpr (requires { Tile::width_v; })
    return column < Tile::width_v;
  else
    return true;
}

/// Stores N neighbours of a row's results, in one access if Tile::store says that their rows are aligned to it.
template <class Tile, int N>
__device__ inline void put_results(const Strided& o, long long offset, int column, const float (&x)[N]) {
  using Out = typename Tile::Out;
  Out* const into = static_cast<Out*>(o.data) + offset + column * o.element;
  constexpr int bytes = N * static_cast<int>(sizeof(Out));
  if constexpr (N % 2 == 0 && Tile::store >= bytes) {
    if (!has_column<Tile>(column)) return;
    if constexpr (N == 4 && sizeof(Out) == 2)
      *reinterpret_cast<uint2*>(into) = {pack<Out>(x[0], x[1]), pack<Out>(x[2], x[3])};
    else if constexpr (N == 4)
      *reinterpret_cast<float4*>(into) = {x[0], x[1], x[2], x[3]};
    else if constexpr (sizeof(Out) == 2)
      *reinterpret_cast<unsigned*>(into) = pack<Out>(x[0], x[1]);
    else
      *reinterpret_cast<float2*>(into) = {x[0], x[1]};
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (has_column<Tile>(column + i)) {
        if constexpr (sizeof(Out) == 2)
          into[i * o.element] = {static_cast<unsigned short>(pack<Out>(x[i], 0.0f))};
        else
          into[i * o.element] = x[i];
      }
  }
}

}  // namespace attune

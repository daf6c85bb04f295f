// codegen/cuda/parts/backward_sm80.cuh — shared by the portable backward kernels: operands, numbers of rows, results
#pragma once

#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/exact_path.cuh"
#include "codegen/cuda/parts/exact_sum.cuh"
#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/parts/products_sm80.cuh"

namespace attune {

/// What a Tile of the portable backward has. Tile::warps x 32 threads, one block per tile, head and batch entry: a key
/// head's tile of keys, or a head's tile of queries.
template <class Tile>
concept BackwardTile80 = requires {
  // Of q, k, v and grad_o: bf16, f16, float.
  requires ElementOf<typename Tile::Element>::bytes >= 2;
  // Queries, keys; stages of those that the block iterates over.
  requires Tile::m % 16 == 0 && Tile::n % 16 == 0 && Tile::stages >= 1;
  // Head widths, rounded up, and the number of real columns among them.
  requires Tile::d % (8 * ElementOf<typename Tile::Element>::bytes) == 0 && Tile::width <= Tile::d;
  requires Tile::dv % (8 * ElementOf<typename Tile::Element>::bytes) == 0 && Tile::width_v <= Tile::dv;
  // As in forward_sm80.cuh.
  int(Tile::vector);
  int(Tile::exact);
  Layout(Tile::layout);
};

/// One number a row, such as lse or delta.
__device__ inline float* row_of(const Rows& rows, int b, int h, int position) {
  return rows.data + b * rows.batch + h * rows.head + position * rows.position;
}

/// A query, with the fields of its head and row.
template <class User>
struct Query {
  const typename User::Head& head;
  const typename User::Row& row;
  Where at;
  Int origin, q;
};
/// What the pairs of a query need of its row. `position`: that row, in lse and delta.
template <class User>
__device__ inline RowEnd end_of(const BackwardArgs& args, const User& user, const Query<User>& of, int position) {
  const float rest = user.rest(of.head, of.row, of.at, of.origin, of.q);
  return row_end(user, *row_of(args.lse, of.at.b, of.at.h, position), rest,
                 *row_of(args.delta, of.at.b, of.at.h, position));
}

/// A gradient's rows of one head: stores results, rounded to the gradient's type.
struct GradientRows {
  char* data;
  long long position, element;  ///< bytes
  Stored type;

  __device__ GradientRows(const Gradient& of, int b, int h, int start) : type(of.type) {
    const long long size = of.type == Stored::f32 ? 4 : 2;
    data = static_cast<char*>(of.to.data) + (b * of.to.batch + h * of.to.head + start * of.to.position) * size;
    position = of.to.position * size;
    element = of.to.element * size;
  }
  __device__ void put(int row, int column, float x) const {
    char* const to = data + row * position + column * element;
    if (type == Stored::f32)
      *reinterpret_cast<float*>(to) = x;
    else
      *reinterpret_cast<unsigned short*>(to) = static_cast<unsigned short>(type == Stored::bf16 ? pack<bf16>(x, 0)
                                                                                                : pack<f16>(x, 0));
  }
  /// Columns `column` and the next one, of `width`; `column` is even.
  __device__ void put(int row, int column, int width, float x, float y) const {
    char* const to = data + row * position + column * element;
    const long long size = type == Stored::f32 ? 4 : 2;
    if (element == size && column + 1 < width && reinterpret_cast<unsigned long long>(to) % (2 * size) == 0) {
      if (type == Stored::f32)
        *reinterpret_cast<float2*>(to) = make_float2(x, y);
      else
        *reinterpret_cast<unsigned*>(to) = type == Stored::bf16 ? pack<bf16>(x, y) : pack<f16>(x, y);
      return;
    }
    if (column < width) put(row, column, x);
    if (column + 1 < width) put(row, column + 1, y);
  }
};

struct NoTerms {
  __device__ void operator()(Flow, float, float) const {}
};

}  // namespace attune

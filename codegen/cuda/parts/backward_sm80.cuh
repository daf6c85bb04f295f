// codegen/cuda/parts/backward_sm80.cuh — what the portable backward kernels share: operands, the ends of rows, results
#pragma once

#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/exact_sum.cuh"
#include "codegen/cuda/parts/products_sm80.cuh"
#include "codegen/cuda/parts/walk.cuh"

namespace attune {

/// An element of a row in memory, and of rows of any strides.
template <class Element>
__device__ inline float element(const Rows80& rows, int position, int column) {
  const char* at = rows.data + position * rows.position + column * rows.element;
  if constexpr (ElementOf<Element>::bytes == 4)
    return *reinterpret_cast<const float*>(at);
  else
    return f32(*reinterpret_cast<const Element*>(at));
}

/// A number of a row: lse, delta and the like.
__device__ inline float* row_of(const Rows& rows, int b, int h, int position) {
  return rows.data + b * rows.batch + h * rows.head + position * rows.position;
}

/// The end of query `i` of a sequence that starts at `start`.
template <class User>
__device__ inline RowEnd end_of(const BackwardArgs& args, const User& user, const typename User::Head& head,
                                const typename User::Row& row, Where at, Int origin, Int q, int position) {
  return row_end(*row_of(args.lse, at.b, at.h, position), user.rest(head, row, at, origin, q),
                 *row_of(args.delta, at.b, at.h, position));
}

/// A gradient's rows of one head: where results of a thread go, rounded to the gradient's type.
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

/// Results that removed pairs may have spoilt: 0 times an infinity or a NaN in their operands.
template <int Width>
__device__ inline bool spoilt(const Fragment<1, Width>& x) {
  bool odd = false;
#pragma unroll
  for (int i = 0; i < Width / 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) odd |= !finite(x[0][i][j]);
  return odd;
}

/// The sum over a warp, in every lane.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

/// A row that a warp holds together: column i of lane i % 32.
template <int Width>
struct WarpRow {
  float x[(Width + 31) / 32] = {};

  template <class Element>
  __device__ void load(const Rows80& rows, int position) {
    each([&](float& x, int column) { x = element<Element>(rows, position, column); });
  }
  template <class Fn>
  __device__ void each(Fn fn) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < (Width + 31) / 32; ++i)
      if (32 * i + lane < Width) fn(x[i], 32 * i + lane);
  }
  __device__ float dot(const WarpRow& other) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < (Width + 31) / 32; ++i) sum += x[i] * other.x[i];
    return warp_sum(sum);
  }
  /// A factor of 0 adds nothing, whatever the row holds.
  __device__ void add(float factor, const WarpRow& row) {
    if (factor == 0.0f) return;
#pragma unroll
    for (int i = 0; i < (Width + 31) / 32; ++i) x[i] += factor * row.x[i];
  }
};

struct NoTerms {
  __device__ void operator()(Flow, float, float) const {}
};

}  // namespace attune

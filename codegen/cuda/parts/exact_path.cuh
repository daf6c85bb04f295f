// codegen/cuda/parts/exact_path.cuh — masked-out values never reach a result, even where they are infinite or NaN
//
// Kernels first multiply everything, masked-out pairs by 0. If that gives a non-finite result although the row's
// weights are finite, they recompute it: forwards with operands split into finite and non-finite numbers, which takes
// six times as long; backwards pair by pair, which takes a hundred times as long.
#pragma once

#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/products_sm80.cuh"

namespace attune {

/// True if a result of this thread is non-finite in its first or second row, and that row counts.
template <int Eights>
__device__ inline bool has_non_finite(const float (&x)[Eights][4], bool of_first = true, bool of_second = true) {
  bool non_finite = false;
#pragma unroll
  for (int i = 0; i < Eights; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) non_finite |= (j < 2 ? of_first : of_second) && !finite(x[i][j]);
  return non_finite;
}

// ---- operands split ----------------------------------------------------------------------------------------------

/// An operand split in three: the finite numbers; the signs of infinities, as 1 or -1, 0 for NaN; and a count, 1 for an
/// infinity, 2 for NaN, because NaN counts as both infinities.
struct SplitOperand {
  unsigned finite, sign, much;
};
template <class Element>
__device__ inline SplitOperand split_operand(unsigned x) {
  using Of = ElementOf<Element>;
  if constexpr (Of::bytes == 4) {
    const bool non_finite = (x & Of::infinity) == Of::infinity, nan = non_finite && (x & 0x007fffffu);
    return {non_finite ? 0u : x, non_finite && !nan ? Of::one | (x & 0x80000000u) : 0u,
            nan          ? Of::two
            : non_finite ? Of::one
                         : 0u};
  } else {
    constexpr unsigned exponent = Of::infinity, fraction = 0x7fff - exponent;
    SplitOperand out{};
#pragma unroll
    for (int i = 0; i < 32; i += 16) {
      const unsigned half = x >> i & 0xffffu;
      const bool non_finite = (half & exponent) == exponent, nan = non_finite && (half & fraction);
      out.finite |= (non_finite ? 0u : half) << i;
      out.sign |= (non_finite && !nan ? Of::one | (half & 0x8000u) : 0u) << i;
      out.much |= (nan ? Of::two : non_finite ? Of::one : 0u) << i;
    }
    return out;
  }
}

/// O += S B like add_product(), but an s of 0 adds nothing, whatever b is: non-finite numbers are counted by sign and
/// added at the end.
template <class Element, bool Exact, int Tall, int N, int Width, class Columns>
__device__ inline void add_product_apart(Fragment<Tall, Width>& o, Fragment<Tall, N>& s, Columns at) {
  constexpr int per_step = 32 / ElementOf<Element>::bytes;
#pragma unroll
  for (int t = 0; t < Tall; ++t)
#pragma unroll
    for (int i = 0; i < Width / 8; ++i) {
      // Registers are short: nothing loads ahead, and operands made of s for one i are not kept for the next.
      __syncwarp();
#pragma unroll
      for (int j = 0; j < N / 2; ++j) pin(s[t][j / 4][j % 4]);
      float sum[4] = {}, low[4] = {}, sign[4] = {}, much[4] = {};
#pragma unroll
      for (int step = 0; step < N / per_step; ++step) {
        unsigned b[4], a[4];
        at.load(b, step, i & ~1);
        const SplitOperand first = split_operand<Element>(b[i % 2 * 2]),
                           second = split_operand<Element>(b[i % 2 * 2 + 1]);
        rounded<Element, Tall, N>(a, s, t, step, [](float x) { return x; });
        multiply<Element, Exact>(sum, low, a, first.finite, second.finite);
        rounded<Element, Tall, N>(a, s, t, step, [](float x) { return x < 0.0f ? -1.0f : x == 0.0f ? 0.0f : 1.0f; });
        product<Element>(sign, a, first.sign, second.sign);
        rounded<Element, Tall, N>(a, s, t, step, [](float x) { return x == 0.0f ? 0.0f : 1.0f; });
        product<Element>(much, a, first.much, second.much);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = o[t][i][e];
        x += fabsf(low[e]) < inf ? sum[e] + low[e] : sum[e];
        if (much[e] + sign[e] > 0.0f) x += inf;
        if (much[e] - sign[e] > 0.0f) x -= inf;
      }
    }
}

// ---- a pair at a time --------------------------------------------------------------------------------------------

/// A row spread over a warp: column i is in lane i % 32.
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

/// A query's q and grad_o, or a key's k and v, in a warp's registers.
template <class Tile>
struct ExactRow {
  WarpRow<Tile::width> x;
  WarpRow<Tile::width_v> y;

  __device__ ExactRow(const Rows80& xs, const Rows80& ys, int position) {
    x.template load<typename Tile::Element>(xs, position);
    y.template load<typename Tile::Element>(ys, position);
  }
  /// Both dot products of the pair that this row and `other` make.
  __device__ PairNumbers with(const ExactRow& other) const { return {x.dot(other.x), y.dot(other.y)}; }
};

}  // namespace attune

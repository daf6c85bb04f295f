// codegen/cuda/parts/products_sm80.cuh — products of a warp's rows with operands in lines of shared memory
#pragma once

#include "codegen/cuda/parts/lines.cuh"
#include "codegen/cuda/parts/multiply_sm80.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// 16 Tall rows of N columns: [t][i][2 r + e] is of row 16 t + 8 r, column 8 i + e, counted from the thread's first. Of
/// 16 rows, thread 4 r + c of a warp has rows r and r + 8, and of these the columns 8 i + 2 c and 8 i + 2 c + 1.
template <int Tall, int N>
using Fragment = float[Tall][N / 8][4];

/// Where a thread reads blocks of 16 rows by 32 bytes. Threads differ only in `first`, which is the same for rows 8
/// apart and units 8 apart; the rest is known at compile time.
template <class Line>
struct Spot {
  /// True if units are swizzled by XOR with bits that are 0 in the address of every row.
  static constexpr bool by_bits = Line::pitch % 128 == 0;
  unsigned first;
  int swizzle;

  __device__ Spot(unsigned from, int row, int half)
      : first(from + static_cast<unsigned>(row * Line::pitch)), swizzle(half ^ Line::swizzle(row & 7)) {
    if constexpr (by_bits) {
      first |= static_cast<unsigned>(swizzle * 16);
      // Otherwise the compiler keeps every unit's address in its own register across tiles.
      pin(first);
    }
  }
  __device__ unsigned at(int row, int step) const { return unit_at(row, 2 * step); }
  /// 16 bytes of a row.
  __device__ unsigned unit_at(int row, int nth) const {
    const int unit = nth % 8;
    const auto there = static_cast<unsigned>(row * Line::pitch + nth / 8 * 128);
    if constexpr (by_bits) return (first ^ static_cast<unsigned>(unit * 16)) + there;
    return first + static_cast<unsigned>((unit ^ swizzle) * 16) + there;
  }
};
/// The order of ldmatrix blocks: the first 16 bytes of both halves of the rows, then the second 16 bytes.
template <class Line>
__device__ inline Spot<Line> by_rows(unsigned from, int lane) {
  return {from, lane & 15, lane >> 4};
}
/// The order of ldmatrix blocks: both 16 bytes of the first 8 rows, then of the other 8 rows.
template <class Line>
__device__ inline Spot<Line> by_bytes(unsigned from, int lane) {
  return {from, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1};
}

template <int Tall, int N>
__device__ inline void clear(Fragment<Tall, N>& x) {
#pragma unroll
  for (int t = 0; t < Tall; ++t)
#pragma unroll
    for (int i = 0; i < N / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) x[t][i][j] = 0;
}

/// S = A B^T for N rows of B, Steps times 32 bytes wide. load_a(into, t, step) loads 16 rows of A by 32 bytes.
template <class Element, bool Exact, int Steps, int Tall, int N, class LoadA, class Line>
__device__ inline void dots(Fragment<Tall, N>& s, LoadA load_a_block, Spot<Line> b_at) {
  float low[Exact ? Tall : 1][Exact ? N / 8 : 1][4] = {};
  clear<Tall, N>(s);
  // Operands load one product ahead, because a load takes some thirty cycles.
  constexpr int pairs = N / 16;
  unsigned a[2][Tall][4], b[2][4];
  const auto load_a = [&](int step) {
#pragma unroll
    for (int t = 0; t < Tall; ++t) load_a_block(a[step % 2][t], t, step);
  };
  const auto load_b = [&](int nth) { load_blocks(b[nth % 2], b_at.at(nth % pairs * 16, nth / pairs)); };
  load_a(0);
  load_b(0);
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const int nth = step * pairs + i;
      if (nth + 1 < Steps * pairs) load_b(nth + 1);
      if (i == 0 && step + 1 < Steps) load_a(step + 1);
#pragma unroll
      for (int t = 0; t < Tall; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          multiply<Element, Exact>(s[t][2 * i + j], low[Exact ? t : 0][Exact ? 2 * i + j : 0], a[step % 2][t],
                                   b[nth % 2][2 * j], b[nth % 2][2 * j + 1]);
    }
  }
  if constexpr (Exact)
#pragma unroll
    for (int t = 0; t < Tall; ++t)
#pragma unroll
      for (int i = 0; i < N / 8; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (fabsf(low[t][i][j]) < inf) s[t][i][j] += low[t][i][j];
}

/// One step's columns of s, rounded, as an operand. For f32 a product takes columns in the order 0, 2, 4, 6, 1, 3, 5,
/// 7, in which this thread holds them.
template <class Element, int Tall, int N, class Fn>
__device__ inline void rounded(unsigned (&a)[4], const Fragment<Tall, N>& s, int t, int step, Fn as) {
  if constexpr (ElementOf<Element>::bytes == 4) {
    constexpr int order[4] = {0, 2, 1, 3};
#pragma unroll
    for (int j = 0; j < 4; ++j) a[j] = __float_as_uint(as(s[t][step][order[j]]));
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      a[j] = pack<Element>(as(s[t][2 * step + j / 2][j % 2 * 2]), as(s[t][2 * step + j / 2][j % 2 * 2 + 1]));
  }
}

/// Where a thread reads rows of B as columns of an operand.
template <class Element, class Line>
struct Columns {
  Spot<Line> at;
  unsigned first;  ///< for f32
  int lane;

  __device__ Columns(unsigned from, int lane) : at(by_rows<Line>(from, lane)), first(from), lane(lane) {}

  /// The rows of a step: eight columns from 8 i on, and the next eight.
  __device__ void load(unsigned (&b)[4], int step, int i) const {
    if constexpr (ElementOf<Element>::bytes == 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        b[j] = static_cast<unsigned>(shared_get(
            first + Line::at(2 * (lane & 3) + j % 2, (2 * i + 2 * (j / 2)) % 8 * 16 + (lane >> 4) * 16) +
            static_cast<unsigned>(8 * step * Line::pitch + (2 * i + 2 * (j / 2)) / 8 * 128 + lane / 4 % 4 * 4)));
    } else {
      load_blocks_transposed(b, at.at(16 * step, i / 2));
    }
  }
};

/// O += S B for N rows of B. Columns: as above, or another type with this load().
template <class Element, bool Exact, int Tall, int N, int Width, class Columns>
__device__ inline void add_product(Fragment<Tall, Width>& o, const Fragment<Tall, N>& s, Columns at) {
  constexpr int per_step = 32 / ElementOf<Element>::bytes;
  const auto same = [](float x) { return x; };
  if constexpr (Exact) {
    // Each tile has its own sum: a product loses low bits when it adds to a large number.
#pragma unroll
    for (int i = 0; i < Width / 8; i += 2) {
      float sum[Tall][2][4] = {}, low[Tall][2][4] = {};
#pragma unroll
      for (int step = 0; step < N / per_step; ++step) {
        unsigned b[4];
        at.load(b, step, i);
#pragma unroll
        for (int t = 0; t < Tall; ++t) {
          unsigned a[4];
          rounded<Element, Tall, N>(a, s, t, step, same);
#pragma unroll
          for (int j = 0; j < 2; ++j) multiply<Element, Exact>(sum[t][j], low[t][j], a, b[2 * j], b[2 * j + 1]);
        }
      }
#pragma unroll
      for (int t = 0; t < Tall; ++t)
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e)
            o[t][i + j][e] += fabsf(low[t][j][e]) < inf ? sum[t][j][e] + low[t][j][e] : sum[t][j][e];
    }
  } else {
    constexpr int pairs = Width / 16, loads = N / per_step * pairs;
    unsigned b[2][4];
    const auto load_b = [&](int nth) { at.load(b[nth % 2], nth / pairs, nth % pairs * 2); };
    load_b(0);
#pragma unroll
    for (int step = 0; step < N / per_step; ++step) {
      unsigned a[Tall][4];
#pragma unroll
      for (int t = 0; t < Tall; ++t) rounded<Element, Tall, N>(a[t], s, t, step, same);
#pragma unroll
      for (int i = 0; i < pairs; ++i) {
        const int nth = step * pairs + i;
        if (nth + 1 < loads) load_b(nth + 1);
#pragma unroll
        for (int t = 0; t < Tall; ++t)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            multiply<Element, Exact>(o[t][2 * i + j], o[t][2 * i + j], a[t], b[nth % 2][2 * j], b[nth % 2][2 * j + 1]);
      }
    }
  }
}

}  // namespace attune

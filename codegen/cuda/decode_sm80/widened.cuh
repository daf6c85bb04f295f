// codegen/cuda/decode_sm80/widened.cuh — an FP8 (E4M3) KV cache as operands of 16 bits: widened in registers, exactly
//
// A product may sum in any order and return its columns in any order, as long as both operands agree. So words of
// shared memory are used as ldmatrix returns them: a thread's four columns of a key are two pairs of one product, and
// of sixteen columns of values the even ones belong to one product and the odd ones to another.
#pragma once

#include "codegen/cuda/parts/products_sm80.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"

namespace attune {

/// Two f16 as a pair of Element.
template <class Element>
__device__ inline unsigned of_halves(unsigned halves) {
  return pack<Element>(low_of<f16>(halves), high_of<f16>(halves));
}
template <>
__device__ inline unsigned of_halves<f16>(unsigned halves) {
  return halves;
}
/// Widens FP8 (E4M3) on GPUs without an instruction for it: its bits, moved to the wider type's exponent and fraction,
/// are the number times a power of two. NaN has the bits of 480, the only number that `beyond` turns into infinity.
template <class Element>
struct Widening;
template <>
struct Widening<f16> {
  static constexpr int shift = 1;
  static constexpr unsigned factor = 0x5c005c00, beyond = 0x58605860;  ///< 2^8, 140

  __device__ static unsigned fma(unsigned a, unsigned b, unsigned c) { return fma_f16_pair(a, b, c); }
};
template <>
struct Widening<bf16> {
  static constexpr int shift = 4;
  static constexpr unsigned factor = 0x7b807b80, beyond = 0x7b0d7b0d;  ///< 2^120, 141 2^112

  __device__ static unsigned fma(unsigned a, unsigned b, unsigned c) { return fma_bf16_pair(a, b, c); }
};

/// The two e4m3 in the lower 16 bits, as a pair.
template <class Element>
__device__ inline unsigned widened(unsigned two) {
#if __CUDA_ARCH__ >= 890
  return of_halves<Element>(f16_pair_of_e4m3(two));
#else
  using By = Widening<Element>;
  constexpr unsigned signs = 0x80008000, minus_zero = signs;
  const unsigned spread = __byte_perm(two, 0, 0x1404), number = (spread & signs) | (spread & ~signs) >> By::shift,
                 x = By::fma(number, By::factor, minus_zero);
  return By::fma(By::fma(x, By::beyond, minus_zero), 0, x);
#endif
}

/// Rows of 16-bit elements as an operand, 32 bytes per step, in memory order.
template <class Line>
struct AsTheyLie {
  Spot<Line> at;

  __device__ AsTheyLie(unsigned from, int lane) : at(by_rows<Line>(from, lane)) {}
  __device__ void load(unsigned (&a)[4], int step) const { load_blocks(a, at.at(0, step)); }
};
/// The same in the order of widened_dots(), where a thread has four neighbours.
template <class Line>
struct WidenedRows {
  Spot<Line> at;

  __device__ WidenedRows(unsigned from, int lane)
      : at(from + static_cast<unsigned>(lane % 2 * 8), lane / 4, lane % 4 / 2) {}
  __device__ void load(unsigned (&a)[4], int step) const {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      a[j] = static_cast<unsigned>(shared_get(at.at(j % 2 * 8, step) + static_cast<unsigned>(j / 2 * 4)));
  }
};

/// S = Q K^T for N FP8 keys, Steps times 16 columns wide. load_a(into, step) loads 16 rows of q by 32 bytes, as
/// WidenedRows does.
template <class Element, int Steps, int N, class LoadA, class Line>
__device__ inline void widened_dots(Fragment<1, N>& s, LoadA load_a, Spot<Line> at) {
  clear<1, N>(s);
  // As in dots(), one load is ahead. It loads 32 columns of 16 keys, for two products per eight keys.
  constexpr int pairs = N / 16, loads = Steps / 2 * pairs;
  unsigned a[2][4], b[2][4];
  const auto load_b = [&](int nth) { load_blocks(b[nth % 2], at.at(nth % pairs * 16, nth / pairs)); };
  load_b(0);
#pragma unroll
  for (int nth = 0; nth < loads; ++nth) {
    if (nth + 1 < loads) load_b(nth + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (nth % pairs == 0) load_a(a[half], 0, 2 * (nth / pairs) + half);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const unsigned four = b[nth % 2][2 * j + half];
        product<Element>(s[0][2 * (nth % pairs) + j], a[half], widened<Element>(four), widened<Element>(four >> 16));
      }
    }
  }
}

/// FP8 values, like Columns for 16 bits, but instead of the eight columns from 8 i on and the next eight, the even and
/// the odd ones of all sixteen.
template <class Element, class Line>
struct WidenedColumns {
  Spot<Line> at;

  __device__ WidenedColumns(unsigned from, int lane) : at(from, lane & 15, 0) {}
  __device__ void load(unsigned (&b)[4], int step, int i) const {
    unsigned x[2];
    load_two_blocks_transposed(x, at.unit_at(16 * step, i / 2));
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const unsigned even_and_odd = __byte_perm(x[k], 0, 0x3120);
      b[k] = widened<Element>(even_and_odd);
      b[2 + k] = widened<Element>(even_and_odd >> 16);
    }
  }
};

}  // namespace attune

// codegen/cuda/backward_wide_sm90/split.cuh — f32 as one or two numbers of f16, and their products: the backward of f32
// on Hopper
//
// A row of numbers, times a power of two that brings the largest into [2^14, 2^15), is number + rest / 2^11, both of
// f16: 22 bits of each fraction. A product is the sum of number number, number rest and rest number. Those with a rest
// have their own sums.
#pragma once

#include "codegen/cuda/parts/warpgroup_sm90.cuh"

namespace attune {

/// What a Tile of a kernel of f32 has, where q, k, v and grad_o of the arguments are the factors of their rows.
template <class Tile>
concept NarrowedTile = requires {
  requires ElementOf<typename Tile::Element>::bytes == 4;
  // Head widths, rounded up, and the numbers of f16 for each f32; keys.
  requires Tile::d % 64 == 0 && Tile::d <= 128 && Tile::dv % 64 == 0 && Tile::dv <= 128;
  requires(Tile::parts == 1 || Tile::parts == 2) && Tile::n == 64;
};

/// The bits of 2^78. Rows with larger numbers are not split, so that the product of two rows' factors is finite.
constexpr unsigned most_split = 127 + 78 << 23;

__device__ inline unsigned larger(unsigned x, unsigned y) { return x > y ? x : y; }

/// The powers of two for a row, by the bits of its largest magnitude. Those below 2^-100 count as 2^-100, since f32
/// ends there too.
struct Scaling {
  float to, back;
  __device__ explicit Scaling(unsigned most) {
    const unsigned exponent = larger(most & 0x7f800000u, 127u - 100 << 23);
    to = __uint_as_float((2u * 127 + 14 << 23) - exponent);
    back = __uint_as_float(exponent - (14 << 23));
  }
};

constexpr float rest_scale = 2048;

/// Two neighbours.
struct SplitPair {
  unsigned number, rest;
  __device__ SplitPair(float x, float y) {
    number = pack<f16>(x, y);
    rest = pack<f16>((x - low_of<f16>(number)) * rest_scale, (y - high_of<f16>(number)) * rest_scale);
  }
};

/// The tile of a kernel as its loads see it: a tensor has as many columns as all parts of a row together.
template <class T>
struct F16PartsTile : T {
  using Element = f16;
  static constexpr int d = T::parts * T::d, dv = T::parts * T::dv, real_d = T::d, real_dv = T::dv;
};

/// True for such a tile.
template <class Tile>
constexpr bool is_split = requires {
  Tile::real_d;
};

/// The factor of a row; `of` describes the factors of the call's tensor.
__device__ inline float factor_of_row(const Strided& of, int b, int h, int row) {
  return __ldg(static_cast<const float*>(of.data) + b * of.batch + h * of.head + row);
}

/// Sums of 64 rows by 64 columns, as a thread holds them; those with rests have their own, if there are any.
template <int Parts, bool Wide = false>
struct SplitSums {
  float x[32], rests[32];

  __device__ float operator[](int i) const { return Parts == 2 ? x[i] + rests[i] * (1 / rest_scale) : x[i]; }
  __device__ void arrived() {
    pin(x);
    if constexpr (Parts == 2) pin(rests);
  }

  /// = A B^T over `width` columns: 64 rows of A, which has `lines` rows, times 64 rows of B.
  template <int width, int lines>
  __device__ void across(unsigned rows_of_a, unsigned rows_of_b) {
    using Of = Product<64, f16>;
    const unsigned long long a = descriptor(rows_of_a), b = descriptor(rows_of_b);
    constexpr int a_chunk = lines * chunk_bytes >> 4, b_chunk = 64 * chunk_bytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < width / 64; ++c) {
      const unsigned long long a_at = a + c * Parts * a_chunk, b_at = b + c * Parts * b_chunk;
      if (c == 0)
        Of::template set4<Major::k, Major::k>(x, a_at, b_at);
      else
        Of::template ss4<Major::k, Major::k>(x, a_at, b_at, 1);
      if constexpr (Parts == 2) {
        if (c == 0)
          Of::template set4<Major::k, Major::k>(rests, a_at, b_at + b_chunk);
        else
          Of::template ss4<Major::k, Major::k>(rests, a_at, b_at + b_chunk, 1);
        Of::template ss4<Major::k, Major::k>(rests, a_at + a_chunk, b_at, 1);
      }
    }
    wgmma_commit();
  }

  /// = A B over 64 rows of B, a chunk of 64 columns; A, and its rests, are in registers.
  __device__ void along(const unsigned (&a)[16], const unsigned (&a_rest)[16], unsigned rows_of_b) {
    using Of = Product<64, f16>;
    const unsigned long long b = descriptor(rows_of_b);
    wgmma_fence();
    Of::template rs4<Major::n>(x, a, b, 0);
    if constexpr (Parts == 2) {
      Of::template rs4<Major::n>(rests, a, b + (64 * chunk_bytes >> 4), 0);
      Of::template rs4<Major::n>(rests, a_rest, b, 1);
    }
    wgmma_commit();
  }
};

/// Such sums of two parts, by products that read A once for numbers and rests of B, which follow one another as 128
/// rows: 10 KB of shared memory instead of 12 for 96 clocks of the tensor cores, which could read 12 KB. They take 32
/// registers more.
template <>
struct SplitSums<2, true> {
  float both[64], rests[32];

  __device__ float operator[](int i) const { return both[i] + (both[32 + i] + rests[i]) * (1 / rest_scale); }
  __device__ void arrived() {
    pin(both);
    pin(rests);
  }

  template <int width, int lines>
  __device__ void across(unsigned rows_of_a, unsigned rows_of_b) {
    const unsigned long long a = descriptor(rows_of_a), b = descriptor(rows_of_b);
    constexpr int a_chunk = lines * chunk_bytes >> 4, b_chunk = 64 * chunk_bytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < width / 64; ++c) {
      const unsigned long long a_at = a + c * 2 * a_chunk, b_at = b + c * 2 * b_chunk;
      if (c == 0) {
        Product<128, f16>::template set4<Major::k, Major::k>(both, a_at, b_at);
        Product<64, f16>::template set4<Major::k, Major::k>(rests, a_at + a_chunk, b_at);
      } else {
        Product<128, f16>::template ss4<Major::k, Major::k>(both, a_at, b_at, 1);
        Product<64, f16>::template ss4<Major::k, Major::k>(rests, a_at + a_chunk, b_at, 1);
      }
    }
    wgmma_commit();
  }
};
/// 64 rows by 64 columns of f32 in registers, split row by row: an operand.
template <int Parts>
struct F16Parts {
  unsigned number[16], rest[16];
  float back[2];  ///< of this thread's two rows

  __device__ explicit F16Parts(const float (&x)[32]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) most = fmaxf(most, fmaxf(fabsf(x[4 * i + 2 * r]), fabsf(x[4 * i + 2 * r + 1])));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const Scaling scaling(__float_as_uint(most));
      back[r] = scaling.back;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const SplitPair pair(x[4 * i + 2 * r] * scaling.to, x[4 * i + 2 * r + 1] * scaling.to);
        number[2 * i + r] = pair.number;
        rest[2 * i + r] = pair.rest;
      }
    }
  }

  /// out += A B over 64 rows of B, whose chunks are 64 columns each: numbers, then rests. Each 64 columns have their
  /// own sums, because the tensor cores lose low bits when they add to a large number. Complete when it returns.
  template <int Half>
  __device__ void add_to(float (&out)[Half], unsigned rows_of_b) const {
#pragma unroll
    for (int c = 0; c < Half / 32; ++c) {
      SplitSums<Parts> sums;
      sums.along(number, rest, rows_of_b + c * Parts * 64 * chunk_bytes);
      wgmma_wait<0>();
      sums.arrived();
#pragma unroll
      for (int i = 0; i < 32; ++i) out[32 * c + i] += sums[i] * back[i / 2 % 2];
    }
  }
};

}  // namespace attune

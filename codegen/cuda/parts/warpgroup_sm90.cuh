// codegen/cuda/parts/warpgroup_sm90.cuh — shared by the warpgroups of Hopper's backward kernels: pairs of S^T = K Q^T,
// wgmma products, results on their way to memory
#pragma once

#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/kept_words.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"
#include "codegen/cuda/ptx/arithmetic.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/wgmma.cuh"

namespace attune {

// ---- products ----------------------------------------------------------------------------------------------------

/// acc = A B^T over a width, rows of both in chunks: 64 rows of A, which has `lines` rows, times all of B. More
/// products may follow in the same wgmma group.
template <class Element, int width, int lines, int Half>
__device__ inline void across_chunks(float (&acc)[Half], unsigned rows_of_a, unsigned rows_of_b) {
  constexpr int columns = 2 * Half, chunk = chunk_columns<Element>;
  const unsigned long long a = descriptor(rows_of_a), b = descriptor(rows_of_b);
  constexpr int a_chunk = lines * chunk_bytes >> 4, b_chunk = columns * chunk_bytes >> 4, chunks = width / chunk;
#pragma unroll
  for (int c = 0; c < chunks; ++c)
    if (c == 0)
      Product<columns, Element>::template set4<Major::k, Major::k>(acc, a, b);
    else
      Product<columns, Element>::template ss4<Major::k, Major::k>(acc, a + c * a_chunk, b + c * b_chunk, 1);
#pragma unroll
  for (int i = 0; i < width % chunk / 16; ++i)
    Product<columns, Element>::template ss<Major::k, Major::k>(acc, a + chunks * a_chunk + i * 2,
                                                               b + chunks * b_chunk + i * 2, chunks + i > 0);
}
/// acc = A B^T, issued: 64 rows of A, all rows of B.
template <int a_rows, int rows, int width, class Element>
__device__ inline void wgmma(float (&acc)[rows / 2], SharedTile<a_rows, width, Element> a,
                             SharedTile<rows, width, Element> b) {
  across_chunks<Element, width, a_rows>(acc, a, b);
  wgmma_commit();
}

/// acc += A B over rows [16 From, 16 To) of B, which has `lines` rows in chunks; A is in registers, for all rows. With
/// add = 0, acc = A B.
template <int From, int To, int lines, int width, class Element, int Half>
__device__ inline void wgmma(float (&acc)[Half], const unsigned (&a)[lines / 4],
                             SharedTile<lines, width, Element> rows_of_b, int add = 1) {
  const unsigned long long b = descriptor(rows_of_b, rows_of_b.chunk_size);
  constexpr int step = 16 * chunk_bytes >> 4, fours = (To - From) / 4 * 4;
  wgmma_fence();
#pragma unroll
  for (int i = From; i < From + fours; i += 4)
    Product<2 * Half, Element>::template rs4<Major::n>(acc, a + 4 * i, b + i * step, i == From ? add : 1);
#pragma unroll
  for (int i = From + fours; i < To; ++i)
    Product<2 * Half, Element>::template rs<Major::n>(acc, a + 4 * i, b + i * step, i == From ? add : 1);
  wgmma_commit();
}

/// Calls f<0>(), f<1>(), ...: packs an operand in parts; the products of one part run while the next is packed.
template <int Count, int Nth = 0, class F>
__device__ inline void each_part(const F& f) {
  f.template operator()<Nth>();
  if constexpr (Nth + 1 < Count) each_part<Count, Nth + 1>(f);
}

// ---- pairs -------------------------------------------------------------------------------------------------------

/// A thread's registers while its warpgroup has 64 keys by m queries. Thread t of the warpgroup holds key t / 4 % 8 +
/// 16 (t / 32) and the key 8 below; of these, queries 8 i + 2 (t % 4) and the next. Drops: dropout draws the decisions
/// of many pairs at once; otherwise prob() is computed for each pair.
template <class Tile, class User, class Shared, bool Drops = User::traits.drops>
struct KeysByQueries {
  using Row = typename User::Row;
  using Col = typename User::Col;
  static constexpr int m = Tile::m;
  static constexpr bool shares = Shareable<Row>;
  /// If exponents are multiples of scores, a masked-out score becomes -inf; otherwise, or if prob(0) may not be 0, each
  /// pair has a bit.
  static constexpr bool removes_scores = User::traits.scaled && User::traits.keeps_zero;
  static constexpr bool drops = Drops, has_prob = User::traits.has_prob && !drops;

  const BackwardArgs& args;
  const User& user;
  Shared shared;
  int group, lane, warp;
  float s[m / 2];
  unsigned removed[(m + 63) / 64];
  KeptByKeys<drops ? m : 0> kept;  ///< by dropout, of this step
  Where at{-1, 0, 0, 0};
  typename User::Head head;
  float factor = 1;
  int keys, queries;  ///< of this thread, the first ones
  Int origin;

  /// Starts an iteration: a head, and a tile of queries with the warpgroup's 64 keys. Values that depend only on the
  /// head are recomputed when it changes.
  template <class Find>
  __device__ void enter_head(int b, int h, const Find& find) {
    if (at.b != b || at.h != h) {
      at = find();
      head = user.head(at);
      factor = factor_of(user, head);
    }
  }
  __device__ void enter_queries(int tile) {
    const int first = args.q_offset + tile * m;
    origin = first;
    queries = first + 2 * (lane & 3);
  }
  __device__ void enter_keys(int first) { keys = first + 16 * warp + lane / 4; }

  /// What pairs read of rows and columns. If lanes share rows, lane / 4 has rows 8 i + e with 2 i + e = 8 j + lane / 4.
  struct Fields {
    Row rows[(m + 31) / 32];
    Col cols[2];
  };
  template <int From = 0, int To = m / 8>
  __device__ void read_fields(Fields& to) const {
    to.cols[0] = user.col(head, at, origin, Int(keys));
    to.cols[1] = user.col(head, at, origin, Int(keys, 8));
    if constexpr (shares) {
#pragma unroll
      for (int j = From / 4; j < (To + 3) / 4; ++j) {
        const int nth = 8 * j + lane / 4;
        to.rows[j] = user.row(head, at, Int(queries + 8 * (nth / 2) + nth % 2));
      }
    }
  }
  /// What remove() needs.
  __device__ Fields read_fields(bool whole) const {
    Fields out;
    if (!whole) read_fields(out);
    return out;
  }

  /// Calls f(i, e, r, row, col, q, kv, kept) for this thread's pairs: query 8 i + e for i in [From, To), key 8 r.
  template <bool Partial, int From = 0, int To = m / 8, class F>
  __device__ void each_pair(const F& f) {
    Fields fields;
    read_fields<From, To>(fields);
    each_pair<Partial, From, To>(fields, f);
  }
  template <bool Partial, int From = 0, int To = m / 8, class F>
  __device__ void each_pair(const Fields& fields, const F& f) {
    const auto& [rows, cols] = fields;
#pragma unroll
    for (int i = From; i < To; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const Int q(queries, 8 * i + e);
        Row row;
        if constexpr (shares)
          row = rows[(2 * i + e) / 8].of_lane((2 * i + e) % 8 * 4 + (lane & 3));
        else
          row = user.row(head, at, q);
        int from = 0, to = 0;
        if constexpr (Partial) {
          const Reach<User> reach(user, head, row, at, q, keys);
          from = reach.from;
          to = q.i() - args.q_offset < at.q_len ? reach.to : -1;
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Int kv(keys, 8 * r);
          bool kept = true;
          if constexpr (Partial) {
            kept = (!User::traits.has_first || 8 * r >= from) && 8 * r <= to;
            if constexpr (User::traits.has_keep) kept = kept && user.keep(head, row, cols[r], at, q, kv);
          }
          f(i, e, r, row, cols[r], q, kv, kept);
        }
      }
  }

  /// Masks out pairs. Two copies of the code that follows, for whole and partial tiles, took registers for both.
  __device__ void remove(bool whole) { remove(whole, read_fields(whole)); }
  __device__ void remove(bool whole, const Fields& fields) {
    if constexpr (!removes_scores)
      for (unsigned& x : removed) x = 0;
    if (whole) return;
    each_pair<true>(fields, [&](int i, int e, int r, const Row&, const Col&, Int, Int, bool kept) {
      const int nth = 4 * i + 2 * r + e;
      if constexpr (removes_scores)
        s[nth] = kept ? s[nth] : -infinity;
      else
        mask_out(nth, kept);
    });
  }
  __device__ void mask_out(int nth, bool kept = false) { removed[nth / 32] |= kept ? 0u : 1u << nth % 32; }
  __device__ bool is_kept(int nth) const { return removes_scores || !(removed[nth / 32] & 1u << nth % 32); }

  /// Draws which pairs dropout keeps; the whole warp calls this.
  __device__ void draw() {
    if constexpr (drops) kept.draw(KeptDraws<User>(user, head, at), queries, keys - lane / 4, lane);
  }
  /// What dropout multiplies a pair by: 0 unless it keeps the pair. Pairs count as in each_pair().
  __device__ float dropped_factor(int i, int e, int r) const {
    return __uint_as_float(__float_as_uint(user.drop_factor(head)) & kept.mask(i, e, r));
  }
  /// Once weigh() has seen the pair: false if it adds nothing to any sum.
  __device__ bool counts(int nth, float x) const { return User::traits.keeps_zero ? x != 0.0f : is_kept(nth); }
  /// prob(P), and 0 for a pair that adds nothing: the factor of a masked-out one may be NaN.
  __device__ float prob_of(float x, int i, int e, int r, const Row& row, const Col& col, Int q, Int kv) const {
    if constexpr (drops)
      return x * dropped_factor(i, e, r);
    else if constexpr (has_prob)
      return counts(4 * i + 2 * r + e, x) ? user.prob(x, head, row, col, at, q, kv) : 0.0f;
    else
      return x;
  }
  /// prob'(P).
  __device__ float prob_slope_of(float x, int i, int e, int r, const Row& row, const Col& col, Int q, Int kv) const {
    if constexpr (drops)
      return dropped_factor(i, e, r);
    else if constexpr (has_prob)
      return user.prob_slope(x, head, row, col, at, q, kv);
    else
      return 1;
  }
};

// ---- results -----------------------------------------------------------------------------------------------------

/// Rows of 64 f32 in shared memory, groups of 8 swizzled so that neither fragments nor rows have bank conflicts.
__device__ inline unsigned staged(unsigned area, int row, int column) {
  return area + 4 * (row * 64 + (column ^ 8 * (row & 7)));
}

/// Stores four neighbours of a gradient's row, of which `count` exist.
__device__ inline void store4(const Gradient& to, long long offset, int count, float4 x) {
  const float all[4] = {x.x, x.y, x.z, x.w};
  const long long step = to.to.element;
  const bool at_once = count >= 4 && step == 1;
  if (to.type == Stored::f32) {
    float* at = static_cast<float*>(to.to.data) + offset;
    if (at_once && (reinterpret_cast<unsigned long long>(at) & 15) == 0) {
      *reinterpret_cast<float4*>(at) = x;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < count) at[i * step] = all[i];
    }
    return;
  }
  const bool is_bf16 = to.type == Stored::bf16;
  const uint2 two{is_bf16 ? pack<bf16>(x.x, x.y) : pack<f16>(x.x, x.y),
                  is_bf16 ? pack<bf16>(x.z, x.w) : pack<f16>(x.z, x.w)};
  unsigned short* at = static_cast<unsigned short*>(to.to.data) + offset;
  if (at_once && (reinterpret_cast<unsigned long long>(at) & 7) == 0) {
    *reinterpret_cast<uint2*>(at) = two;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i < count) at[i * step] = static_cast<unsigned short>((i < 2 ? two.x : two.y) >> (i % 2 * 16));
  }
}

/// The 16 rows of a gradient that a warp stores; `row`: the first, counted in the positions `of`.
struct WarpRows {
  const Gradient& to;
  int b, h;
  Range of;
  int row, width;
};

/// A warp stores 64 columns of its staged rows, from column `first` on.
__device__ inline void store_rows(const WarpRows& rows, unsigned area, int first, int lane) {
  const auto& [to, b, h, of, row, width] = rows;
#pragma unroll 2
  for (int i = lane / 16; i < 16; i += 2) {
    const int column = 4 * (lane % 16);
    const float4 x = shared_get4(staged(area, i, column));
    if (row + i < of.length && first + column < width)
      store4(to,
             b * to.to.batch + h * to.to.head + (of.start + row + i) * to.to.position +
                 (first + column) * to.to.element,
             width - first - column, x);
  }
}

/// A warp stages 16 rows, laid out as wgmma accumulators, in 4 KB of shared memory, 64 columns at a time, and calls
/// then(first) after each.
template <int Half, class Then>
__device__ inline void stage_sixteen(const float (&x)[Half], float by, unsigned area, int lane, const Then& then) {
#pragma unroll
  for (int c = 0; c < (Half + 31) / 32; ++c) {
    __syncwarp();
#pragma unroll
    for (int i = 8 * c; i < min(8 * c + 8, Half / 4); ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        shared_put(staged(area, lane / 4 + 8 * r, 8 * (i - 8 * c) + 2 * (lane & 3)), x[4 * i + 2 * r] * by,
                   x[4 * i + 2 * r + 1] * by);
    __syncwarp();
    then(64 * c);
  }
}

template <class Element>
constexpr Stored stored_as = Stored::f16;
template <>
constexpr Stored stored_as<bf16> = Stored::bf16;

/// True if rows of a gradient can be stored 8 elements at a time.
template <class Element>
__device__ inline bool stores_eights(const Gradient& to, int width) {
  const long long steps = to.to.batch | to.to.head | to.to.position | width;
  return to.type == stored_as<Element> && to.to.element == 1 && (steps & 7) == 0 &&
         (reinterpret_cast<unsigned long long>(to.to.data) & 15) == 0;
}

/// Pairs of elements, times a factor; zeros beyond x.
template <class Element, int Pairs, int Half>
__device__ inline void pack_pairs(unsigned (&to)[Pairs], const float (&x)[Half], float by) {
#pragma unroll
  for (int i = 0; i < Pairs; ++i) to[i] = 2 * i < Half ? pack<Element>(x[2 * i] * by, x[2 * i + 1] * by) : 0;
}

/// Adds 0 times each element of a pair: NaN once an element is infinite or NaN.
template <class Element>
__device__ inline unsigned add_zeros_of(unsigned zero, unsigned pair) {
  if constexpr (stored_as<Element> == Stored::bf16)
    return fma_bf16_pair(pair, 0, zero);
  else
    return fma_f16_pair(pair, 0, zero);
}

/// A warp stores 16 rows of such a gradient, laid out as wgmma accumulators, in pairs, through 4 KB of shared memory:
/// rows of 64 or 128 columns, in swizzled eights, without bank conflicts. `area`: a multiple of a row's bytes. Returns
/// true if an element is infinite or NaN, also of rows and columns that do not exist. A loop, because code that runs
/// once per item is fetched each time.
template <class Element, int Pairs>
__device__ inline bool store_pairs(const unsigned (&x)[Pairs], const WarpRows& of_warp, unsigned area, int lane) {
  const auto& [to, b, h, of, row, width] = of_warp;
  constexpr int eights = Pairs > 16 ? 16 : 8, pitch = 16 * eights, at_once = 32 / eights;  // rows
  const int line = lane & 15;
  const unsigned into = area + pitch * line + 16 * (lane >> 4 ^ (line & 7));
  __syncwarp();
#pragma unroll
  for (int i = 0; i < Pairs / 2; i += 2)
    store_blocks(into ^ 16 * i, x[2 * i], x[2 * i + 1], x[2 * i + 2], x[2 * i + 3]);
  __syncwarp();
  const int eight = lane & (eights - 1), first = lane / eights;
  Element* at = static_cast<Element*>(to.to.data) + b * to.to.batch + h * to.to.head +
                (of.start + row + first) * to.to.position + 8 * eight;
  const long long step = at_once * to.to.position;
  unsigned from = area + pitch * first + 16 * (eight ^ first), zero = 0;
  int left = to.to.data && 8 * eight < width ? of.length - row - first : 0;
#pragma unroll 1
  for (int half = 0; half < 2; ++half, from += 8 * pitch, left -= 8)
#pragma unroll
    for (int i = 0; i < 8; i += at_once, at += step) {
      const uint4 x8 = shared_get_words((from ^ 16 * i) + pitch * i);
      if (i < left) global_put(at, x8);
      for (const unsigned pair : {x8.x, x8.y, x8.z, x8.w}) zero = add_zeros_of<Element>(zero, pair);
    }
  return (zero & 0x7fff7fff) != 0;
}
template <class Element, int Half>
__device__ inline void store_sixteen(const float (&x)[Half], float by, const WarpRows& of_warp, unsigned area,
                                     int lane) {
  unsigned pairs[Half / 2];
  pack_pairs<Element>(pairs, x, by);
  store_pairs<Element>(pairs, of_warp, area, lane);
}

/// True if one of these is infinite or NaN.
template <int N>
__device__ inline bool has_non_finite(const float (&x)[N]) {
  float zero[4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) zero[i % 4] += x[i] * 0.0f;
  return !(zero[0] + zero[1] + (zero[2] + zero[3]) == 0.0f);
}

}  // namespace attune

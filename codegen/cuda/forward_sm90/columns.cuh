// codegen/cuda/forward_sm90/columns.cuh — what scores read of a tile's columns, once for all warps of a block
#pragma once

#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/forward_sm90/numbers.cuh"

namespace attune {

/// A column as words.
template <class Tile, class Col>
struct ColumnWords {
  static constexpr int count = words_of_column<Tile>;
  static_assert(sizeof(Col) == 4 * count);
  unsigned words[count];

  __device__ static ColumnWords of(const Col& col) { return __builtin_bit_cast(ColumnWords, col); }
  __device__ Col col() const { return __builtin_bit_cast(Col, *this); }
};

/// Computes the columns of each tile, and the largest term() of each warp's columns. A lane t of four has columns 8 i +
/// 2 t and the next for all i, which lie together.
template <class Tile, class User>
struct FindColumns90 : FindNumbers90<Tile, User> {
  using Base = FindNumbers90<Tile, User>;
  using Base::args, Base::k, Base::lane, Base::lanes, Base::shared, Base::user, Base::warp;
  using typename Base::Shared;
  static constexpr int n = Tile::n, words = words_of_column<Tile>;

  __device__ void run() {
    this->each_tile([&](const typename User::Head& head, const Where& at, int q, int kv) { find(head, at, q, kv); });
  }

 private:
  __device__ void find(const typename User::Head& head, const Where& at, int origin, int kv) const {
    const unsigned to = numbers_of<Tile>(shared, k);
    typename User::Col cols[(n + lanes - 1) / lanes];
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int j = 0; j < (n + lanes - 1) / lanes; ++j) {
        const int column = lanes * j + 32 * warp + lane;
        if (n % lanes == 0 || column < n) f(cols[j], column);
      }
    };
    each([&](typename User::Col& col, int column) { col = user.col(head, at, origin, kv + column); });
    each([&](const typename User::Col& col, int column) {
      const auto is = ColumnWords<Tile, typename User::Col>::of(col);
      const unsigned line = to + column / 2 % 4 * Shared::columns_line + 4 * words * (column / 8 * 2 + column % 2);
#pragma unroll
      for (int w = 0; w < words; ++w) shared_put(line + 4 * w, is.words[w]);
    });
    if constexpr (User::traits.peak == Peak::columns) {
      const typename User::Row row = user.row(head, at, origin);
      float most = -infinity;
      each([&](const typename User::Col& col, int column) {
        if (kv + column < at.kv_len) most = fmaxf(most, user.term(head, row, col, at, origin, origin, kv + column));
      });
#pragma unroll
      for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
      if (lane == 0) shared_put(to + Shared::columns_most + 4 * warp, __float_as_uint(most));
    }
  }
};

/// A tile's columns as a consumer warp reads them.
template <class Tile, class Col>
struct Columns90 {
  using Shared = Shared90<Tile>;
  static constexpr int words = words_of_column<Tile>;
  unsigned shared;  ///< numbers_of()
  int lane;

  /// Calls f(i, e, column) for every column of this thread, 8 i + 2 (lane % 4) + e.
  template <class F>
  __device__ void each(const F& f) const {
    constexpr int at_once = 4 / words;  // columns
#pragma unroll
    for (int c = 0; c < Tile::n / 4; c += at_once) {
      const uint4 four = shared_get_words(shared + (lane & 3) * Shared::columns_line + 4 * words * c);
      const unsigned of[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < at_once; ++j) {
        ColumnWords<Tile, Col> is;
#pragma unroll
        for (int w = 0; w < words; ++w) is.words[w] = of[words * j + w];
        f((c + j) / 2, (c + j) % 2, is.col());
      }
    }
  }
  __device__ Col at(int column) const {
    const unsigned line = shared + column / 2 % 4 * Shared::columns_line + 4 * words * (column / 8 * 2 + column % 2);
    ColumnWords<Tile, Col> is;
#pragma unroll
    for (int w = 0; w < words; ++w) is.words[w] = static_cast<unsigned>(shared_get(line + 4 * w));
    return is.col();
  }
  /// The largest term() of all columns.
  __device__ float most() const {
    const float2 most = shared_get2(shared + Shared::columns_most);
    return fmaxf(most.x, most.y);
  }
};

}  // namespace attune

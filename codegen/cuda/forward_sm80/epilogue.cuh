// codegen/cuda/forward_sm80/epilogue.cuh — the epilogue of forward_sm80.cuh: results go through shared memory to global
// memory
#pragma once

#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Scales results and adds the results over other keys; lse becomes that of all keys. Everything is read before any
/// thread of the warp overwrites it.
template <class Tile, class Block>
__device__ inline void merge_before(Block& of) {
  static_assert(!Block::two_passes);
#pragma unroll
  for (int t = 0; t < Block::tall; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of.row_at(t, r), query = of.query_of(row), position = of.entry.queries.start + query,
                h = of.softmax.at().h;
      Ended& at = of.ended[t][r];
      const Finished by = finish<Tile>(at, of.exists(row, query) ? lse_before(of.args, of.place.b, h, position)
                                                                 : -infinity);
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = of.o[t][i][2 * r + e];
          x = result<Tile>(of.args, by, x, of.place.b, h, position, 8 * i + 2 * (of.lane & 3) + e);
        }
      at.factor = 1;
      at.lse = by.lse;
    }
  __syncwarp();
}

/// Each warp writes its rows' results to lines of shared memory, and their lse to memory.
template <class Tile, class Block>
__device__ inline void put_in_lines(const Block& of) {
#pragma unroll
  for (int t = 0; t < Block::tall; ++t)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = of.row_at(t, r);
      const Ended& at = of.ended[t][r];
#pragma unroll
      for (int i = 0; i < Tile::dv / 8; ++i) {
        float x = of.o[t][i][2 * r], y = of.o[t][i][2 * r + 1];
        if constexpr (Block::two_passes) {
          if (of.is_empty(at)) x = y = 0;
          // Infinite or NaN scores, which prob() may hide: it need not depend on p.
          if (at.lse != at.lse && !of.is_empty(at)) x = y = at.lse;
        } else {
          x = at.factor == 0.0f ? 0.0f : x * at.factor;
          y = at.factor == 0.0f ? 0.0f : y * at.factor;
        }
        const unsigned into = of.shared + Block::OLine::at(row, (8 * i + 2 * (of.lane & 3)) * Block::out_size);
        if constexpr (Block::out_size == 2)
          shared_put(into, pack<typename Tile::Out>(x, y));
        else
          shared_put(into, __float_as_uint(x), __float_as_uint(y));
      }
      const int query = of.query_of(row);
      if (of.lane % 4 == 0 && of.exists(row, query)) {
        const int position = of.entry.queries.start + query;
        put_of_row(of.args.lse, of.place.b, of.softmax.at().h, position, at.lse);
        if constexpr (Tile::max) put_of_row(of.args.max, of.place.b, of.softmax.at().h, position, at.max);
      }
    }
}

/// ld.shared, st.global
template <int Bytes, class Out>
__device__ inline void move(Out* to, unsigned from) {
  if constexpr (Bytes == 2) {
    reinterpret_cast<unsigned short*>(to)[0] = shared_get_half(from);
  } else {
    struct alignas(Bytes) Words {
      unsigned word[Bytes / 4];
    } words;
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i)
      words.word[i] = static_cast<unsigned>(shared_get(from + static_cast<unsigned>(4 * i)));
    *reinterpret_cast<Words*>(to) = words;
  }
}

/// Each warp copies its lines to memory.
template <class Tile, class Block>
__device__ inline void put_lines(const Block& of) {
  const int row0 = of.warp * 16 * Block::tall;
  using Out = typename Tile::Out;
  Out* const into = static_cast<Out*>(of.args.o.data) + of.place.b * of.args.o.batch +
                    of.place.heads.first * of.args.o.head + of.entry.queries.start * of.args.o.position;
  constexpr int step = Tile::store ? Tile::store : Block::out_size, pieces = Tile::width_v * Block::out_size / step;
  const int count = min(16 * Block::tall, (of.entry.queries.length - of.first) * Block::heads - row0);
  for (int i = of.lane; i < count * pieces; i += 32) {
    const int row = row0 + i / pieces, byte = i % pieces * step;
    const unsigned from = of.shared + Block::OLine::at(row, byte);
    if (Block::heads > 1 && row % Block::heads >= of.place.heads.count) continue;
    move<step>(into + row % Block::heads * of.args.o.head + (of.first + row / Block::heads) * of.args.o.position +
                   byte / Block::out_size * of.args.o.element,
               from);
  }
}

/// Stores the results, lse and maximum of a Block80's rows.
template <class Tile, class Block>
__device__ inline void store_rows(Block& of) {
  if constexpr (has_before<Tile>) merge_before<Tile>(of);
  put_in_lines<Tile>(of);
  __syncwarp();
  put_lines<Tile>(of);
}

}  // namespace attune

// codegen/cuda/parts/lines.cuh — copies rows of a tensor of any strides into swizzled lines of shared memory
#pragma once

#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Rows of Pitch bytes, swizzled in units of 16 bytes: the same unit of eight rows lies in eight different banks.
/// Paired: two units of rows 0, 2, 4 and 6 lie in eight different banks.
template <int Pitch, bool Paired = false>
struct Lines {
  /// `among`: how many units are permuted among each other.
  static constexpr int pitch = Pitch, units = Pitch / 16, among = (units & -units) < 8 ? units & -units : 8;

  __device__ static int swizzle(int row) {
    if constexpr (Paired) return among == 8 ? (row / 2 % 4) * 2 : among == 4 ? (row / 4 % 2) * 2 : 0;
    return row / (8 / among) % among;
  }
  __device__ static unsigned at(int row, int byte) {
    return static_cast<unsigned>(row * Pitch + (((byte / 16) ^ swizzle(row)) * 16 + byte % 16));
  }
};

/// Rows of a head of a tensor.
struct Rows80 {
  static constexpr bool paged = false;
  const char* data;
  long long position, element;  ///< bytes
};
template <class Element>
__device__ inline Rows80 rows_of(const Strided& t, int b, int h, int start) {
  constexpr long long size = ElementOf<Element>::bytes;
  return {static_cast<const char*>(t.data) + (b * t.batch + h * t.head + start * t.position) * size, t.position * size,
          t.element * size};
}

/// The element at `column` of a row, as f32.
template <class Element>
__device__ inline float element(const Rows80& rows, int position, int column) {
  const char* at = rows.data + position * rows.position + column * rows.element;
  if constexpr (ElementOf<Element>::bytes == 4)
    return *reinterpret_cast<const float*>(at);
  else
    return f32(*reinterpret_cast<const Element*>(at));
}

/// Rows of a head of a pool of pages, of one entry.
struct PagedRows80 : Rows80 {
  static constexpr bool paged = true;
  Pages pages;
  long long page;  ///< bytes

  /// Null if the row's page does not exist.
  __device__ const char* row(int i) const {
    const Pages::At at = pages.at(i);
    return pages.exists(at.page) ? data + at.page * page + at.row * position : nullptr;
  }
};
template <class Element>
__device__ inline PagedRows80 paged_rows_of(const Strided& t, const PageTable& page_table, int b, int h) {
  return {rows_of<Element>(t, 0, h, 0), Pages(page_table, b), t.batch * ElementOf<Element>::bytes};
}

/// The unsigned integer that is as wide as an element of 2 or 4 bytes. A trait, because clang 14 cannot read a lambda
/// in a decltype back from a precompiled header.
template <int bytes>
struct WordOf {
  using Type = unsigned;
};
template <>
struct WordOf<2> {
  using Type = unsigned short;
};

/// Copies rows [first, first + Count) of a tensor, Width bytes of each, to every Every-th line of shared memory, from
/// line `nth` on; missing rows and bytes are 0.
template <class Tile, int Count, int Pitch, int Width, bool Paired, int Every = 1, class Rows>
__device__ inline void load_rows(unsigned into, const Rows& rows, int first, int length, int nth = 0) {
  using Line = Lines<Pitch, Paired>;
  using Element = typename Tile::Element;
  constexpr int step = Tile::vector ? Tile::vector : ElementOf<Element>::bytes;
  constexpr int pieces = Pitch / step, across = (pieces & -pieces) < 32 ? pieces & -pieces : 32;
  constexpr int down = Tile::warps * 32 / across;
  const int thread = static_cast<int>(threadIdx.x), row0 = thread / across, byte0 = thread % across * step;
  const char* from = rows.data + (first + row0) * rows.position;
  if constexpr (Tile::vector > 0) {
    // Rows 8 apart have the same order of units.
    constexpr bool alike = down * Every % 8 == 0 && (Pitch == across * step || across * step % 128 == 0);
    const unsigned at = into + Line::at(nth + Every * row0, byte0);
    const int left = length - first - row0;
#pragma unroll
    for (int r = 0; r < Count; r += down, from += down * rows.position) {
      if (Count % down != 0 && row0 + r >= Count) break;
      bool has_row = r < left;
      if constexpr (Rows::paged) {
        from = has_row ? rows.row(first + row0 + r) : nullptr;
        has_row = from != nullptr;
      }
#pragma unroll
      for (int c = 0; c < Pitch; c += across * step) {
        const int byte = byte0 + c, there = Width == Pitch ? step : min(max(Width - byte, 0), step);
        const int count = has_row ? there : 0;
        const unsigned to = alike ? at + static_cast<unsigned>(Every * r * Pitch + c)
                                  : into + Line::at(nth + Every * (row0 + r), byte);
        copy_async<step>(to, count ? from + byte : rows.data, count);
      }
    }
  } else {
    using Word = typename WordOf<ElementOf<Element>::bytes>::Type;
    // Several loads are issued before the first one is stored.
    constexpr int batch = 8;
    for (int r = 0; r < Count; r += down, from += down * rows.position) {
      const int row = row0 + r;
      if (row >= Count) break;
      bool there = first + row < length;
      if constexpr (Rows::paged) {
        from = there ? rows.row(first + row) : nullptr;
        there = from != nullptr;
      }
      for (int c = 0; c < Pitch; c += across * step * batch) {
        Word words[batch];
#pragma unroll
        for (int i = 0; i < batch; ++i) {
          const int byte = byte0 + c + i * across * step;
          words[i] = 0;
          if (there && byte < Width) words[i] = *reinterpret_cast<const Word*>(from + byte / step * rows.element);
        }
#pragma unroll
        for (int i = 0; i < batch; ++i) {
          const int byte = byte0 + c + i * across * step;
          if (byte < Pitch) shared_put(into + Line::at(nth + Every * row, byte), words[i]);
        }
      }
    }
  }
}

}  // namespace attune

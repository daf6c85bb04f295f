// codegen/cuda/parts/copied_read_sm90.cuh — elements of a captured tensor for each pair, copied to shared memory tile
// by tile
#pragma once

#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// The bits that are copied to shared memory for each pair, tile by tile, in units of 16.
template <class Tile>
constexpr int copied_units = [] {
  if constexpr (requires { Tile::copies; }) return Tile::copies;
  return 0;
}();
/// True if elements of captured tensors are: of one tensor, or of two of 16 bits.
template <class Tile, class User>
constexpr bool copies_reads = copied_units<Tile> != 0 && HasCopied<User>;
template <class Tile, class User>
constexpr bool copies_two = copied_units<Tile> == 2 && HasCopied<User, 1>;

/// The type of elements that a kernel copies for a Mod, of the nth tensor.
template <class User, int nth = 0>
using CopiedElement = decltype(element_of(static_cast<const User*>(nullptr)->copied(Nth<nth>{})));

/// The elements of a tensor for `rows` rows and n keys, which a warp copies, 16 bytes a lane at a time. Rows lie in
/// chunks of 128 bytes, swizzled like TMA's, so that neither copies nor what reads them has bank conflicts. `aligned`:
/// the host knows that lines can be copied so and are as long as the keys.
template <class User, int rows, int n, int tensor = 0, bool aligned = false>
struct CopiedTile90 {
  static constexpr int unit = static_cast<int>(16 / sizeof(CopiedElement<User, tensor>));  ///< elements in 16 bytes
  static constexpr int step = unit == 8 ? 2 : 1, passes = rows / step, lanes = 32 / step;  ///< rows of a pass; lanes of
                                                                                           ///< a row
  static constexpr int at_once = passes < 8 ? passes : 8;                                  ///< passes in a loop's body
  static_assert(n <= lanes * unit);

  const User& user;
  unsigned shared;
  int lane;
  int odd = rows * chunk_bytes;  ///< where every other chunk lies, counted from the chunk before

  /// Starts the copies of `count` rows from position `q` on, and of the keys from `kv` on. Rows and keys past the last
  /// one get the elements of others.
  __device__ void start(unsigned stage, const typename User::Head& head, const Where& at, int q, int count,
                        int kv) const {
    if (count <= 0) return;
    constexpr Nth<tensor> of;
    const auto& from = user.copied(of);
    const auto row = [&](int nth) { return user.row(head, at, q + nth); };
    const auto line = [&](int nth) { return user.copied_line(of, head, row(nth), at, q + nth); };
    const int last = min(count, rows) - 1;
    // Not kept from tile to tile: there are no registers for it.
    unsigned me = static_cast<unsigned>(lane);
    pin(me);
    const int first = static_cast<int>(me) / lanes, nth = static_cast<int>(me % lanes);
    if (nth * unit >= n) return;
    unsigned to = shared + stage + place(first, nth);
    // Rows of a pass are a multiple of `step` below `first`, whose bits do not overlap.
    const auto into = [&](int i) { return (to ^ (step * i & 7) << 4) + step * i * chunk_bytes; };
    // Beyond the tensor's last column, whole units would not repeat that column.
    const bool whole = aligned || (from.copies_lines() && from.columns() >= at.kv_len);
    const int column = min(kv + unit * nth, from.columns() - unit);
    if (whole && user.copied_steps(of, head, row(0), at, q) && user.copied_steps(of, head, row(last), at, q + last)) {
      const auto* elements = line(0);
      const auto apart = from.offset_of(line(1) - elements);
      elements += column;
      if (last == rows - 1) {
        // A warp alone loads in a backward, so each instruction counts.
        elements += first * apart;
#pragma unroll 1
        for (int i = 0; i < passes; i += at_once, to += step * at_once * chunk_bytes)
#pragma unroll
          for (int j = 0; j < at_once; ++j, elements += step * apart) copy_async<16>(into(j), elements, 16);
      } else {
#pragma unroll 1
        for (int i = 0; i < passes; ++i) copy_async<16>(into(i), elements + min(first + step * i, last) * apart, 16);
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < passes; ++i) {
        const auto* elements = line(min(first + step * i, last));
        if (whole) {
          copy_async<16>(into(i), elements + column, 16);
        } else if constexpr (!aligned) {
          unsigned words[unit / 2];
#pragma unroll
          for (int j = 0; j < unit; j += 2)
            words[j / 2] = from.bits(elements, kv + unit * nth + j) | from.bits(elements, kv + unit * nth + j + 1)
                                                                          << 16;
          shared_put(into(i), words[0], words[1], words[2], words[3]);
        }
      }
    }
  }

  /// Where the nth 16 bytes of a row are.
  __device__ unsigned place(int row, int nth) const {
    return nth / 16 * (rows * chunk_bytes) + nth / 8 % 2 * odd + row * chunk_bytes + ((nth % 8 ^ (row & 7)) << 4);
  }
};

/// An element of two, which lie in a register.
template <class User, int tensor = 0>
__device__ inline float copied_of(unsigned two, int e) {
  using Element = CopiedElement<User, tensor>;
  return e ? high_of<Element>(two) : low_of<Element>(two);
}

/// The tiles of a consumer warp of the forward, which copies its own 16 rows; ldmatrix hands elements out as a thread
/// has scores.
template <class Tile, class User>
struct CopiedReads90 {
  static constexpr bool two = copies_two<Tile, User>;
  const User& user;
  unsigned shared;
  int lane;
  unsigned apart;  ///< the tile of the second tensor, from that of the first

  template <int tensor>
  __device__ auto of() const {
    return CopiedTile90<User, 16, Tile::n, tensor>{user, shared + tensor * apart, lane};
  }
  __device__ void start(unsigned stage, const typename User::Head& head, const Where& at, int q, int count,
                        int kv) const {
    of<0>().start(stage, head, at, q, count, kv);
    if constexpr (two) of<1>().start(stage, head, at, q, count, kv);
  }

  /// Calls f(i, r, e, held) for every score of this thread, as ForwardScores90::each() counts them.
  template <class F>
  __device__ void each(unsigned stage, const F& f) const {
    const unsigned from = shared + stage + of<0>().place(lane & 15, lane >> 4);
#pragma unroll
    for (int k = 0; k < Tile::n / 16; ++k) {
      unsigned pairs[4], second[4];
      const unsigned at = (from ^ (2 * k & 7) << 4) + k / 4 * (16 * chunk_bytes);
      load_blocks(pairs, at);
      if constexpr (two) load_blocks(second, at + apart);
#pragma unroll
      for (int nth = 0; nth < 4; ++nth)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          typename User::Held held{copied_of<User>(pairs[nth], e), 0, 0};
          if constexpr (two) held.copied_second = copied_of<User, 1>(second[nth], e);
          f(2 * k + nth / 2, nth % 2, e, held);
        }
    }
  }
};

}  // namespace attune

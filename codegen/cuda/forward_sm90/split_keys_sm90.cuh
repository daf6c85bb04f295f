// codegen/cuda/forward_sm90/split_keys_sm90.cuh — all keys and values of a call as numbers of TF32 in memory, values
// with keys along rows, before forward_f32_sm90.cuh
//
// A block splits one tile of keys of a head, and its values. Part by part, it stores keys in chunks of 32 columns by n
// rows, and values in chunks of 32 keys by dv rows. The tiles of a head follow one another; those of a packed sequence
// begin at its place (place_of). Rows and columns that do not exist are zeros.
#pragma once

#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/multiply_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// `parts`: 1, the rounded number, or 2, also the rounded rest.
template <class Tile>
requires(Tile::n % 32 == 0 && Tile::d % 32 == 0 && Tile::dv % 32 == 0 &&
         (Tile::parts == 1 || Tile::parts == 2)) __global__ void __launch_bounds__(split_threads)
    split_keys_sm90(const __grid_constant__ SplitArgs args) {
  constexpr int n = Tile::n, chunk = chunk_columns<float>, fours = chunk / 4, pitch = Tile::dv + 1;
  __shared__ unsigned values[n * pitch];
  // The next kernel may start; it waits for the end of this one.
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x), tile = block % args.tiles,
            set = block / args.tiles, head = set % args.heads, batch = set / args.heads;
  int b = batch, first = tile * n;  // the entry, and its first key here
  const bool packed = is_packed<Tile> && (!is_per_entry<Tile> || args.kv_starts);
  if (packed) {
    b = sequence_at<n>(args.kv_starts, args.batch, tile);
    first = (tile - place_of<n>(args.kv_starts, b)) * n;
  }
  const Range keys = entry_of<Tile>(args, b).keys;
  const int left = min(keys.length - first, n);
  if (packed && left <= 0) return;
  const int of_batch = args.kv_shared || packed ? 0 : b;
  /// The row's first element; null if it does not exist.
  const auto line = [&](const Strided& t, int row) -> const float* {
    const float* const of_head = static_cast<const float*>(t.data) + head * t.head;
    if (row >= left) return nullptr;
    if constexpr (!is_paged<Tile>) {
      return of_head + of_batch * t.batch + (keys.start + first + row) * t.position;
    } else {
      const Pages pages(args.page_table, b);
      const Pages::At at = pages.at(first + row);
      return pages.exists(at.page) ? of_head + at.page * t.batch + at.row * t.position : nullptr;
    }
  };
  /// Four columns of a row.
  const auto four = [&](const Strided& t, int width, int row, int column) {
    const float* const at = line(t, row);
    if (at && column + 4 <= width) return *reinterpret_cast<const uint4*>(at + column);
    const auto one = [&](int i) { return at && column + i < width ? __float_as_uint(at[column + i]) : 0u; };
    return uint4{one(0), one(1), one(2), one(3)};
  };
  const auto store = [&](float* to, int words, int at, const uint4& x) {
    uint4* const into = reinterpret_cast<uint4*>(to + static_cast<long long>(block) * Tile::parts * words + at);
    *into = {tf32(x.x), tf32(x.y), tf32(x.z), tf32(x.w)};
    if constexpr (Tile::parts == 2) into[words / 4] = {tf32_rest(x.x), tf32_rest(x.y), tf32_rest(x.z), tf32_rest(x.w)};
  };
#pragma unroll 4
  for (int i = thread; i < n * Tile::dv / 4; i += split_threads) {
    const int row = i / (Tile::dv / 4), column = i % (Tile::dv / 4) * 4;
    const uint4 x = four(args.v, args.dv, row, column);
    unsigned* const to = values + row * pitch + column;
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
#pragma unroll 4
  for (int i = thread; i < n * Tile::d / 4; i += split_threads) {
    const int row = i / (Tile::d / 4), column = i % (Tile::d / 4) * 4;
    store(args.k_to, n * Tile::d, (column / chunk * n + row) * chunk + column % chunk,
          four(args.k, args.d, row, column));
  }
  __syncthreads();
  // Of each eight keys, the even ones come first: a thread holds the scores of keys 2 c and 2 c + 1.
#pragma unroll 4
  for (int i = thread; i < n * Tile::dv / 4; i += split_threads) {
    const int column = i / fours % Tile::dv, first = i / (fours * Tile::dv) * chunk + i % fours / 2 * 8 + i % 2;
    const unsigned* const from = values + first * pitch + column;
    store(args.v_to, n * Tile::dv, 4 * i, {from[0], from[2 * pitch], from[4 * pitch], from[6 * pitch]});
  }
}

}  // namespace attune

// codegen/cuda/forward_sm90/transposer.cuh — a tile of values of 8 bits transposed in shared memory: keys along rows,
// in the order in which threads hold their scores
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Within each 16 keys, place 4 c + j of a transposed row has key 8 (j / 2) + 2 c + j % 2: the order in which lane c of
/// four holds the scores of a row. A warp transposes 32 keys by 16 columns at a time. `columns`: of the chunk that is
/// transposed.
template <class Tile, int columns = Tile::dv>
struct Transposer {
  static constexpr int warps = 2, wide = columns / 16, each = wide / warps;
  static_assert(Tile::n % 32 == 0 && wide % 2 == 0 && wide <= 8);

  int warp, lane;

  /// Transposes this warp's share of a tile: every other 16 columns of every `step`th 32 keys. All loads are issued
  /// before the stores that need them: interleaved with stores, loads took longer than everything else.
  template <int step = 1>
  __device__ void transpose(unsigned loaded, unsigned transposed, int first = 0) const {
    // A lane has keys 2 c, 2 c + 1 and these + 8, of columns 2 g and 2 g + 1. Of each eight rows stored at once no two
    // may be congruent modulo 8: lanes with g < 4 first store the even columns, the others the odd ones.
    const bool low = lane < 16;
    const unsigned even = low ? 0x6420 : 0x7531, odd = low ? 0x7531 : 0x6420;
    const int g = lane % 8, row = 16 * warp + 2 * g + ((g >= 4) != (lane / 8 % 2 == 1)), half = lane / 16;
    unsigned from = loaded + (32 * first + lane) * chunk_bytes + ((warp ^ (lane & 7)) << 4);
#pragma unroll 1
    for (int keys = first; keys < Tile::n / 32; keys += step) {
      unsigned x[each][4];
#pragma unroll
      for (int j = 0; j < each; ++j) load_blocks_transposed(x[j], from ^ warps * j << 4);
      const unsigned to = transposed + keys / 4 * (Tile::dv * chunk_bytes) + row * chunk_bytes +
                          ((2 * (keys % 4) + half ^ (row & 7)) << 4);
#pragma unroll
      for (int j = 0; j < each; ++j)
        store_blocks(to + 16 * warps * j * chunk_bytes, __byte_perm(x[j][0], x[j][1], even),
                     __byte_perm(x[j][0], x[j][1], odd), __byte_perm(x[j][2], x[j][3], even),
                     __byte_perm(x[j][2], x[j][3], odd));
      from += 32 * step * chunk_bytes;
    }
  }
};

}  // namespace attune

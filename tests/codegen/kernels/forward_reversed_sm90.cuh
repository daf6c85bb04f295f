// tests/codegen/kernels/forward_reversed_sm90.cuh — Hopper's forward with a key source that only tests have: a call's
// keys and values from the last one to the first
//
// Not part of the library. The main loop and the producer are those of forward_sm90.cuh.
#pragma once

#include "codegen/cuda/forward_sm90/forward_sm90.cuh"

namespace attune {

/// All lanes of the producer warp load 16 bytes at a time, so rows are multiples of 16 bytes. bf16 and f16, not
/// transposed.
template <class Tile>
struct ReversedKeys {
  using Element = typename Tile::Element;
  static constexpr int threads = 32;
  using Places = int;  ///< the first row

  const ForwardArgs& args;
  int b, head;
  Range keys;

  __device__ ReversedKeys(const ForwardArgs& args, unsigned) : args(args) {}
  __device__ void enter(int of_b, int of_head, const Entry& entry) {
    b = of_b;
    head = of_head;
    keys = entry.keys;
  }

  __device__ Places look_up(int row) const { return row; }

  __device__ const Element* line(const Strided& t, int row) const {
    return static_cast<const Element*>(t.data) + (args.kv_shared ? 0 : b) * t.batch + head * t.head +
           (keys.start + keys.length - 1 - row) * t.position;
  }
  __device__ const Element* key(int row) const { return line(args.k, row); }
  __device__ const Element* value(int row) const { return line(args.v, row); }

  __device__ void load(unsigned into, unsigned full, const Strided& t, int row, int chunks, int width) const {
    constexpr int unit = 16 / sizeof(Element), units = chunk_bytes / 16;  // elements of 16 bytes; of these, in a chunk
    const int lane = static_cast<int>(threadIdx.x) % 32, nth = lane % units;
    // A producer warp has few registers.
#pragma unroll 1
    for (int i = lane / units; i < Tile::n; i += 32 / units)
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        const int column = c * units * unit + nth * unit;
        uint4 x{};
        if (row + i < keys.length && column < width) x = *reinterpret_cast<const uint4*>(line(t, row + i) + column);
        shared_put(into + c * Tile::n * chunk_bytes + i * chunk_bytes + ((nth ^ (i & 7)) << 4), x.x, x.y, x.z, x.w);
      }
    proxy_fence();
    arrive_as_warp(full, lane);
  }
  __device__ void load_keys(unsigned into, unsigned full, int row) const {
    load(into, full, args.k, row, Shared90<Tile>::at.d_chunks, args.d);
  }
  __device__ void load_values(unsigned into, unsigned full, int row) const {
    load(into, full, args.v, row, Shared90<Tile>::at.dv_chunks, args.dv);
  }
};

template <class Tile>
struct ReversedTile : Tile {
  using Keys = ReversedKeys<ReversedTile>;
};

template <ForwardTile Tile, class User>
__global__ void __launch_bounds__(128 * (Tile::m / 64 + 1), 1)
    forward_reversed_sm90(const __grid_constant__ ForwardArgs args, const __grid_constant__ User user) {
  forward_block<Warpgroup90<ReversedTile<Tile>, User>, ReversedTile<Tile>>(args, user);
}

}  // namespace attune

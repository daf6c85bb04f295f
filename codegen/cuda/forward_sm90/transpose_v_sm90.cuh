// codegen/cuda/forward_sm90/transpose_v_sm90.cuh — all values of a call transposed in memory, before
// forward_e4m3_sm90.cuh
//
// A block transposes one chunk of 128 columns of a tile of values of a head: it loads by TMA, transposes in shared
// memory, and stores by TMA. The tiles of a head follow one another; those of a packed sequence begin at its place
// (place_of).
#pragma once

#include "codegen/cuda/forward_sm90/transposer.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// A chunk of a tile of values, in shared memory.
template <class Tile, int columns>
__device__ inline void transpose_chunk(unsigned loaded, unsigned transposed, int thread) {
  constexpr int pairs = transpose_threads / 64;
  const int warp = thread / 32;
  Transposer<Tile, columns>{warp % 2, thread % 32}.template transpose<pairs>(loaded, transposed, warp / 2);
}

template <class Tile>
requires(Tile::dv <= 128 || Tile::n <= 128) __global__ void __launch_bounds__(transpose_threads)
    transpose_v_sm90(const __grid_constant__ TransposeArgs args) {
  constexpr int n = Tile::n, chunks = (n + chunk_bytes - 1) / chunk_bytes, loaded_bytes = n * chunk_bytes,
                rows = chunks * Tile::dv, wide = (Tile::dv + chunk_bytes - 1) / chunk_bytes,
                most = wide == 1 ? Tile::dv : chunk_bytes, last = Tile::dv - (wide - 1) * most,
                transposed_bytes = chunks * most * chunk_bytes;
  __shared__ unsigned char memory[loaded_bytes + transposed_bytes + 1024];
  __shared__ unsigned long long barrier;
  // The next kernel may start; it waits for the end of this one.
  let_next_start();
  const int thread = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x), chunk = block % wide,
            nth = block / wide, tile = nth % args.tiles, set = nth / args.tiles, head = set % args.heads,
            batch = set / args.heads;
  int key = tile * n, left = n;
  if constexpr (is_packed<Tile>) {
    const int b = sequence_at<n>(args.starts, args.batch, tile);
    key = args.starts[b] + (tile - place_of<n>(args.starts, b)) * n;
    left = min(args.starts[b + 1] - key, n);
    if (left <= 0) return;
  }
  const unsigned loaded = (shared_address(memory) + 1023) & ~1023u, transposed = loaded + loaded_bytes,
                 full = shared_address(&barrier);
  if (thread == 0) {
    barrier_init(full, 1);
    barrier_init_done();
    barrier_expect(full, loaded_bytes);
    load_box(loaded, args.from, full, chunk * chunk_bytes, key, head, batch);
  }
  __syncthreads();
  barrier_wait(full, 0);
  if constexpr (is_packed<Tile>) {
    // Rows past the end of a sequence belong to the next one.
    for (int at = left * chunk_bytes + 16 * thread; at < loaded_bytes; at += 16 * transpose_threads)
      shared_put(loaded + at, 0u, 0u, 0u, 0u);
    __syncthreads();
  }
  if (last == most || chunk < wide - 1)
    transpose_chunk<Tile, most>(loaded, transposed, thread);
  else
    transpose_chunk<Tile, last>(loaded, transposed, thread);
  proxy_fence();
  __syncthreads();
  if (thread != 0) return;
  // A chunk of several consists of boxes.
  constexpr int box = wide == 1 ? rows : transposed_box_rows;
  const int all = wide == 1 ? rows : chunk < wide - 1 ? most : last;
  for (int i = 0; i < all; i += box)
    store_box(args.to, transposed + i * chunk_bytes, 0, tile * rows + chunk * most + i, head, batch);
  store_commit();
  store_wait();
}

}  // namespace attune

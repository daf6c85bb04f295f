// codegen/cuda/backward_sm90/diagonals.cuh — the warp of Hopper's backward that sums dS along diagonals
//
// The gradient of a table such as bias[h, clamp(q - kv, -R, R) + R] is the sum of dS over all pairs of one distance. A
// separate warp sums dS in shared memory, where dS lies for dQ's product. The sum of a distance leaves the warp's
// registers once no later tile has pairs of that distance. Each item has its own memory for these sums: blocks reach
// the same distances at the same time, and would wait for one another at shared sums.
#pragma once

#include "codegen/cuda/backward_sm90/spread_diagonals.cuh"
#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/mma.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// The warp works on blocks of 8 queries by 8 keys. It adds up all blocks (a, j) of a tile with a - j = w, element by
/// element, as products with an identity matrix: ordinary instructions would take several hundred more per step, and
/// shuffles of single blocks wait for shared memory, which dS's products keep busy. Element (n, g) of the sum has
/// distance 8 w + n - g. If n < g it joins block w - 1, so one block holds the distances from 8 w to 8 w + 7. Three
/// rounds of shuffles add up its elements of equal (n - g) mod 8: four blocks, 32 distances, one per lane.
template <class Tile, class User>
struct Diagonals90 {
  using Element = typename Tile::Element;
  static constexpr int m = Tile::m, n = Tile::n;
  /// Groups of four blocks in a tile, from w = -keys on; `done`: the groups that no longer meet the next tile.
  static constexpr int keys = n / 8, fours = (m / 8 + keys) / 4, done = m / 32;

  const BackwardArgs& args;
  const User& user;
  Shared90Backward<Tile> shared;
  float held[fours] = {};
  int left = 0;  ///< tiles after which all of `held` has been stored
  /// The step whose tile was summed last, one word per lane, because this warp has few registers. Its tile of queries
  /// is the one that would meet `held`.
  int word = 0;

  __device__ int of_step(int i) const { return __shfl_sync(~0u, word, i); }

  /// Stores the sums of distances that the next tile does not have, one per lane, and moves on to that tile.
  __device__ void move_on() {
    const bool falls = of_step(0) & Step::falls;
    const int lane = lane_asked(), g = lane / 4, turns = (g + (g >> 2)) / 2, y = 2 * ((lane - turns) & 3) + (g >> 2);
    float* const to = diagonals_of<Tile>(args, user, of_step(2), of_step(3), of_step(4)) + of_step(1) * m +
                      8 * (g & 3) + y;
#pragma unroll
    for (int i = 0; i < done; ++i) {
      const int above = fours - done + i;
      to[32 * (falls ? above : i)] = falls ? held[above] : held[i];
    }
    if (falls) {
#pragma unroll
      for (int i = fours - 1; i >= 0; --i) held[i] = i >= done ? held[i - done] : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < fours; ++i) held[i] = i + done < fours ? held[i + done] : 0.0f;
    }
    if (lane == 1) word += falls ? -1 : 1;
  }

  /// Adds the tile in this buffer to `held`.
  __device__ void sum(int buffer) {
    const int lane = lane_asked(), g = lane / 4, t = lane & 3, row = lane & 7, matrix = lane / 8;
    const bool odd = g & 1, second = g & 2, third = g & 4, joins0 = 2 * t < g, joins1 = 2 * t + 1 < g;
    // The four blocks of an operand, as (query, key): (0, 0), (0, 1), (1, 1), (1, 2).
    const unsigned from = shared.ds()[buffer].from(8 * (matrix / 2) + row);
    const int key = 16 * (matrix / 2 + matrix % 2);
    const unsigned identity = (2 * t == g ? ElementOf<Element>::one : 0) |
                              (2 * t + 1 == g ? ElementOf<Element>::one << 16 : 0);
    // Blocks w, which is odd, and w - 1, which is even.
    const auto blocks = [&](int w, float(&c)[4]) {
#pragma unroll
      for (float& x : c) x = 0;
#pragma unroll
      for (int a = 0; a < m / 8; a += 2) {
        const int j = a - w;
        if (j < -1 || j >= keys) continue;
        const int at = 16 * j + key;
        unsigned x[4];
        load_blocks_transposed(x, from + a * 8 * chunk_bytes + ((at & 0x70) ^ (row << 4)) +
                                      (at >> 7 & 1) * m * chunk_bytes);
        if (j < 0) x[0] = 0;
        if (j + 1 == keys) x[1] = x[2] = x[3] = 0;
        product<Element>(c, x, identity, identity);
      }
    };
    const int across = 4 * (g ^ 1) + ((t + (odd ? 3 : 1)) & 3), further = 4 * (g ^ 2) + ((t + (second ? 3 : 1)) & 3),
              furthest = 4 * (g ^ 4) + (t ^ 2);
    float above[2] = {};
#pragma unroll
    for (int i = fours - 1; i >= 0; --i) {
      float joined[2][2];
#pragma unroll
      for (int two = 1; two >= 0; --two) {
        float c[4];
        blocks(4 * i - keys + 2 * two + 1, c);
        const float high[2] = {joins0 ? above[0] : c[0], joins1 ? above[1] : c[1]},
                    low[2] = {joins0 ? c[0] : c[2], joins1 ? c[1] : c[3]};
        above[0] = c[2], above[1] = c[3];
        // In odd lanes, even differences n - g come from odd n.
        joined[two][0] = (odd ? high[1] : low[0]) + __shfl_xor_sync(~0u, odd ? low[1] : high[0], 4);
        joined[two][1] = (odd ? high[0] : low[1]) + __shfl_sync(~0u, odd ? low[0] : high[1], across);
      }
      float y[2];
#pragma unroll
      for (int e = 0; e < 2; ++e)
        y[e] = (second ? joined[1][e] : joined[0][e]) + __shfl_sync(~0u, second ? joined[0][e] : joined[1][e], further);
      held[i] += (third ? y[1] : y[0]) + __shfl_sync(~0u, third ? y[0] : y[1], furthest);
    }
  }

  __device__ void run() {
#pragma unroll 1
    for (unsigned step = 0;; ++step) {
      barrier_wait(shared.known(step), step / steps_kept & 1);
      const int lane = lane_asked(), now = shared_get(step_word(shared, step, lane % step_words)), what = uniform(now);
      const bool sums = !(what & (Step::empty | Step::stop));
      // Another tile of the same walk has the same head.
      const bool same = __all_sync(~0u, lane == 0 ? sums && !(now & Step::first) : lane < 2 || lane > 3 || now == word);
      const int next = __shfl_sync(~0u, now, 1);
#pragma unroll 1
      for (; left > 0 && !(same && of_step(1) == next); --left) move_on();
      if (what & Step::stop) return;
      static_assert(Tile::stages == 2);
      const int buffer = static_cast<int>(step & 1);
      const StageBarriers ds = shared.ds_full()[buffer];
      ds.wait(step >> 1 & 1);
      if (sums) sum(buffer);
      __syncwarp();
      if (lane_asked() == 0) barrier_arrive(ds.empty());
      if (!sums) continue;
      word = now;
      left = fours / done - 1;
      move_on();
    }
  }
};

}  // namespace attune

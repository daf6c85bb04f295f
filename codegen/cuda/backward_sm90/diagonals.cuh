// codegen/cuda/backward_sm90/diagonals.cuh — the warps of Hopper's backward that sum dS along diagonals
//
// The gradient of a table such as bias[h, clamp(q - kv, -R, R) + R] is the sum of dS over all pairs of one distance.
// Four warps sum dS in shared memory, where dS lies for dQ's product. The sum of a distance leaves a warp's registers
// once no later tile has pairs of that distance. Each item has its own memory for these sums: blocks reach the same
// distances at the same time, and would wait for one another at shared sums.
#pragma once

#include "codegen/cuda/backward_sm90/spread_diagonals.cuh"
#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// A tile of dS consists of blocks of 8 queries by 8 keys; blocks (a, j) lie on block diagonal w = a - j. Element (r,
/// e) of such a block has distance 8 w + r - e. Four block diagonals are a *band*. In every tile, warp n % 4 sums the
/// nth band of a head. A tile has six or eight bands, which give each warp the same number of blocks. A warp begins a
/// tile with the band that it did not complete in the tile before. So no sum passes from warp to warp.
///
/// A lane has row r of one block diagonal, and adds up the eight elements of that row over all its blocks: 16 bytes, in
/// other banks for each of the eight lanes that load together. Lanes meet only when a band is complete. Not products
/// with ones, which take half of the instructions: ptxas refuses them in fewer than 32 registers.
template <class Tile, class User>
struct Diagonals90 {
  using Element = typename Tile::Element;
  static constexpr int m = Tile::m, n = Tile::n, warps = 4;
  /// Bands of a tile; those that a tile completes.
  static constexpr int bands = (m + n) / 32, done = m / 32;

  const BackwardArgs& args;
  const User& user;
  Shared90Backward<Tile> shared;
  int warp;
  float sums[8] = {};  ///< of the band's elements
  int held = -1;       ///< the place of the band's first distance; -1: none. An address takes two registers

  /// The sum of elements with r - e = g, or of those with r - e = g - 8, for the lane of row g.
  __device__ float along(bool further) const {
    const int r = lane_asked() & 7;
    const auto x = [&](int e) { return (e > r) == further ? sums[e] : 0.0f; };
    // Of two rows, the even one takes even g: both keep elements of even e and pass on the others.
    float two[4], four[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) two[i] = x(2 * i) + __shfl_xor_sync(~0u, r & 1 ? x(2 * i + 1) : x((2 * i + 7) & 7), 1);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      four[i] = two[2 * i] + __shfl_xor_sync(~0u, r & 2 ? two[2 * i + 1] : two[(2 * i + 3) & 3], 2);
    return four[0] + __shfl_xor_sync(~0u, four[1], 4);
  }
  /// Adds the band's sums to memory. A distance between two bands gets one term from each, so their order does not
  /// matter.
  __device__ void store() {
    // One after the other, because registers are short.
    float low = along(false);
    pin(low);
    const float high = along(true);
    const float next = __shfl_down_sync(~0u, high, 8);
    const int lane = lane_asked();
    float* const to = user.diagonals + (held + lane);
    atomicAdd(to, lane < 24 ? low + next : low);
    // The first band of a head has no distances below its own.
    if (lane < 8 && high != 0.0f) atomicAdd(to - 8, high);
#pragma unroll
    for (float& x : sums) x = 0;
  }

  /// Adds the blocks of the tile's nth band to `sums`.
  __device__ void add(int nth, int buffer) {
    const int lane = lane_asked(), first = 4 * nth - n / 8, end = min(m / 8, first + n / 8 + 3);
    int a = max(first, 0);
    // 16 j, which wraps around where the lane's block diagonal has no block (a, j); and where its row of blocks a lies.
    unsigned place = (a - first - lane / 8) << 4, at = shared.ds()[buffer].from(8 * a + (lane & 7));
    const unsigned swizzle = (lane & 7) << 4;
#pragma unroll 2
    for (; a < end; ++a, place += 16, at += 8 * chunk_bytes) {
      uint4 x{};
      if (place < 2 * n) x = shared_get_words(at + (place & 128) * m + ((place & 112) ^ swizzle));
      sums[0] += low_of<Element>(x.x), sums[1] += high_of<Element>(x.x);
      sums[2] += low_of<Element>(x.y), sums[3] += high_of<Element>(x.y);
      sums[4] += low_of<Element>(x.z), sums[5] += high_of<Element>(x.z);
      sums[6] += low_of<Element>(x.w), sums[7] += high_of<Element>(x.w);
    }
  }

  /// Adds the tile's nth band, if it has one.
  __device__ void pass(int first, int nth, int buffer) {
    if (nth >= bands) return;
    if (held != first + 32 * nth) {
      if (held >= 0) store();
      held = first + 32 * nth;
    }
    add(nth, buffer);
  }
  /// Adds this warp's bands of a tile: first the one that earlier tiles have begun.
  __device__ void add_tile(unsigned step, bool falls, int buffer) {
    const auto word = [&](int i) { return uniform(shared_get(step_word(shared, step, i))); };
    const int tile = word(1), nth = (warp - done * tile & warps - 1) ^ (falls ? warps : 0),
              first = static_cast<int>(diagonals_of<Tile>(args, user, word(2), word(3), word(4)) - user.diagonals) +
                      tile * m;
    pass(first, nth, buffer);
    pass(first, nth ^ warps, buffer);
  }

  __device__ void run() {
#pragma unroll 1
    for (unsigned step = 0;; ++step) {
      barrier_wait(shared.known(step), step / steps_kept & 1);
      const int what = uniform(shared_get(step_word(shared, step, 0)));
      if (what & Step::stop) break;
      static_assert(Tile::stages == 2);
      const int buffer = static_cast<int>(step & 1);
      const StageBarriers ds = shared.ds_full()[buffer];
      ds.wait(step >> 1 & 1);
      if (!(what & Step::empty)) add_tile(step, what & Step::falls, buffer);
      __syncwarp();
      if (lane_asked() == 0) barrier_arrive(ds.empty());
    }
    if (held >= 0) store();
  }
};

}  // namespace attune

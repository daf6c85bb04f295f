// codegen/cuda/parts/distances_sm90.cuh — the part of a score that depends only on how far apart q and kv are, computed
// once a distance
#pragma once

#include "codegen/cuda/parts/tile_scheduler_sm90.cuh"
#include "codegen/cuda/ptx/shared.cuh"

namespace attune {

/// The numbers for a consumer warp's 16 rows and a tile of keys: number i belongs to kv - q = i - 15, counted from the
/// first of both. Pairs of neighbours are read at once, so there is a second copy for the pairs that begin with an odd
/// number. The copies lie in different banks.
template <class Tile, class User>
struct Distances90 {
  static constexpr int n = Tile::n, before = 15, count = n + before, second = Shared90<Tile>::distant_copy;

  const User& user;
  unsigned shared;  ///< of this warp
  int lane;

  __device__ void find(const typename User::Head& head, const Where& at, int q, int kv) const {
#pragma unroll
    for (int j = 0; j < (count + 31) / 32; ++j) {
      const int i = 32 * j + lane;
      const float x = user.distant(head, at, q + max(before - i, 0), kv + max(i - before, 0));
      shared_put(shared + 4 * i, __float_as_uint(x));
      // The first number begins no pair of the second copy.
      if (i > 0) shared_put(shared + second + 4 * (i - 1), __float_as_uint(x));
    }
  }

  /// Calls f(i, r, e, number) for every score of this thread, as ForwardScores90::each() counts them.
  template <class F>
  __device__ void each(const F& f) const {
    // Of score i = 0, r = 0, e = 0. A step of i moves by 8 numbers, as does r, back.
    const int first = before - lane / 4 + 2 * (lane & 3);
    const unsigned from = shared + 4 * (first & ~1) + (first & 1) * second;
    float2 now = shared_get2(from - 32);
#pragma unroll
    for (int i = 0; i < n / 8; ++i) {
      const float2 below = now;
      now = shared_get2(from + 32 * i);
      f(i, 0, 0, now.x);
      f(i, 1, 0, below.x);
      f(i, 0, 1, now.y);
      f(i, 1, 1, below.y);
    }
  }
};

}  // namespace attune

// codegen/cuda/forward_sm90/distances.cuh — the part of a score that depends only on how far apart q and kv are,
// computed once a distance
#pragma once

#include "codegen/cuda/forward_sm90/numbers.cuh"

namespace attune {

/// Computes the numbers of each tile. Number i belongs to kv - q = i - (m - 1), counted from the first of both.
/// Consumers read pairs of neighbours at once, so there is a second copy for the pairs that begin with an odd number.
/// The copies lie in different banks.
template <class Tile, class User>
struct FindDistances90 : FindNumbers90<Tile, User> {
  using Base = FindNumbers90<Tile, User>;
  using Base::k, Base::lane, Base::lanes, Base::shared, Base::user, Base::warp;
  using typename Base::Shared;
  static constexpr int count = Tile::m + Tile::n - 1, before = Tile::m - 1;

  __device__ void run() {
    this->each_tile([&](const typename User::Head& head, const Where& at, int q, int kv) { find(head, at, q, kv); });
  }

 private:
  __device__ void find(const typename User::Head& head, const Where& at, int q, int kv) const {
    const unsigned to = numbers_of<Tile>(shared, k) + 4 * (32 * warp + lane);
    float x[(count + lanes - 1) / lanes];
    // All reads before the stores that need them.
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int j = 0; j < (count + lanes - 1) / lanes; ++j) f(x[j], lanes * j + 32 * warp + lane, to + 4 * lanes * j);
    };
    each([&](float& x, int i, unsigned) {
      x = user.distant(head, at, q + max(before - i, 0), kv + max(i - before, 0));
    });
    // The first number of the second copy begins no pair, and goes to the gap before it.
    each([&](float x, int, unsigned to) {
      shared_put(to, __float_as_uint(x));
      shared_put(to + Shared::distant_copy - 4, __float_as_uint(x));
    });
  }
};

/// The numbers for a consumer warp's 16 rows, from `row` on, and a tile of keys.
template <class Tile>
struct Distances90 {
  unsigned shared;  ///< numbers_of()
  int row, lane;

  /// Calls f(i, r, e, number) for every score of this thread, as ForwardScores90::each() counts them.
  template <class F>
  __device__ void each(const F& f) const {
    // Of score i = 0, r = 0, e = 0. A step of i moves by 8 numbers, as does r, back.
    const int first = Tile::m - 1 - row - lane / 4 + 2 * (lane & 3);
    const unsigned from = shared + 4 * (first & ~1) + (first & 1) * Shared90<Tile>::distant_copy;
    float2 now = shared_get2(from - 32);
#pragma unroll
    for (int i = 0; i < Tile::n / 8; ++i) {
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

// codegen/cuda/forward_sm90/numbers.cuh — numbers that the scores of a tile of keys need, computed ahead by warps next
// to the producer warp
#pragma once

#include "codegen/cuda/forward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// Where the numbers for the keys in this place are.
template <class Tile>
__device__ inline unsigned numbers_of(unsigned shared, const Place<Tile::stages>& keys) {
  using Shared = Shared90<Tile>;
  return shared + Shared::numbers + (keys.phase * Tile::stages + keys.stage) * Shared::numbers_bytes;
}

/// Computes the numbers of each tile. When consumer warps read the captured tensors themselves, they waited for these
/// reads between the products that they issue.
template <class Tile, class User>
struct FindNumbers90 {
  using Shared = Shared90<Tile>;
  static constexpr int lanes = 32 * number_warps<Tile>;
  static_assert(!transposes_values<Tile> && Tile::heads == 1);

  const ForwardArgs& args;
  const User& user;
  unsigned shared;
  int warp, lane;
  Ring<Tile::stages> k{shared + Shared::k_full};
  Items<Tile, User> items{args, shared};

  __device__ FindNumbers90(const ForwardArgs& args, const User& user, unsigned shared, int warp, int lane)
      : args(args), user(user), shared(shared), warp(warp), lane(lane) {}

  /// Calls find(head, at, origin, kv) for each tile of queries and of keys, whose first positions these are.
  template <class Find>
  __device__ void each_tile(const Find& find) {
    for (;;) {
      const Item item = items.template take<true>();
      __syncwarp();
      if (lane == 0) items.done();
      if (item.index == Item::stop) return;
      const Where at = item.entry.at(item.work.b, item.work.heads.first);
      const auto head = user.head(at);
      const int origin = item.entry.query(item.work.tile * Tile::m);
      const int count = item.walk.count;
#pragma unroll 1
      for (int i = 0; i < (two_walks<User> ? 2 : 1) * count; ++i) {
        const int tile = item.walk.tile(two_walks<User> && i >= count ? i - count : i);
        // Those of stages + 1 tiles may still be read: the keys of the tile before them have been released, which a
        // consumer does before it reads the numbers that came with them.
        find(head, at, origin, item.entry.key(tile * Tile::n));
        k.acquire();
        arrive_as_warp(k.full(), lane);
        k.next();
      }
    }
  }
};

}  // namespace attune

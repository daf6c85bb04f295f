// codegen/cuda/forward_sm90/two_walks.cuh — a consumer warpgroup of Hopper's forward under a prob mod that is no
// multiple of p: it visits the keys for the rows' sums, then again for results
#pragma once

#include "codegen/cuda/forward_sm90/consumer.cuh"

namespace attune {

/// The first walk computes scores alone, so a tile takes one product and its exponentials; while a warpgroup computes
/// these, the other one has the tensor cores. The second walk is that of ForwardConsumer90 with probabilities in place
/// of powers: their sum is known, so results are never rescaled, and prob() gets what the mod's author called p.
template <class Group, class Tile, class User>
struct ForwardTwoWalks90 : ForwardConsumer90<Group, Tile, User> {
  using Base = ForwardConsumer90<Group, Tile, User>;
  using Base::Base;
  using Base::g, Base::k, Base::q;
  static_assert(!recomputes<Tile, User> && !begins_late<Tile, User> && !User::traits.drops && !in_turn<Tile>);

  /// One tile of keys of the first walk, and the one that is visited after it.
  template <bool Partial>
  __device__ void visit(int tile, int next) {
    k.wait();
    if constexpr (Tile::issue_order != 0) this->wait_for_turn();
    pin(g.s);
    wgmma_fence();
    g.scores(q.stage, k.stage);
    if constexpr (Base::issue_ordered) this->pass_turn();
    g.take_numbers(k);
    g.template read_columns<Partial>(tile);
    g.copy_ahead(next, true);
    wgmma_wait<0>();
    if constexpr (Base::products_ordered) this->pass_turn();
    pin(g.s);
    k.release(g.lane);
    k.next();
    g.template add_up<Partial>(tile);
  }

  /// Full and partial tiles have separate code, and no value of a single warp decides which: warps of a warpgroup issue
  /// the same products.
  __device__ void sums(const Walk& walk) {
    q.wait();
    g.prepare_queries(q.stage);
    g.copy_ahead(walk.last, true);
    int tile = walk.last, i = 0;
    // The tile after the last one is the second walk's first.
    const auto after = [&] { return ++i < walk.count ? walk.tile(i) : walk.last; };
#pragma unroll 1
    while (i < walk.count) {
      int next = after();
      visit<true>(tile, next);
      tile = next;
#pragma unroll 1
      while (walk.is_full(i) && g.is_inside(tile)) {
        next = after();
        visit<false>(tile, next);
        tile = next;
      }
    }
  }

  __device__ void results(const Item& now) {
    this->prologue(now);
    g.take_numbers(k);
    g.template read_columns<true>(now.walk.last);
    wgmma_wait<0>();
    pin(g.s);
    this->first_tile(now, false);
    this->main_loop(now.walk, false);
    // O += P V of the last tile.
    const Ring<Tile::stages> v = this->values();
    g.pin_products();
    wgmma_fence();
    g.values(v.stage, now.walk.count > 1);
    wgmma_wait<0>();
    g.pin_products();
    g.take_in();
    v.release(g.lane);
  }

  __device__ void run() {
    if (Tile::issue_order && g.group == Base::groups - 1) this->pass_turn();
    this->me = uniform(4 * g.group + g.warp);
    // Undefined registers: the compiler would move them while products are under way.
    for (float& x : g.o) x = 0;
    for (unsigned& x : g.p) x = 0;
    g.pin_products();
    for (Item now = this->next_item(); now.index != Item::stop;) {
      g.enter(now);
      if (now.walk.count > 0) sums(now.walk);
      g.end_sums(now.work, now.walk.count == 0);
      if (now.walk.count > 0) results(now);
      this->epilogue(now, false, true);
      // The next item comes when the producer warp has seen that results before these have left.
      now = this->next_item();
      if constexpr (leave_over_values<Tile>) this->report_left();
    }
    if (g.lane == 0) store_wait();
  }
};

}  // namespace attune

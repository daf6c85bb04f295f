// codegen/cuda/forward_sm90/in_turn.cuh — a consumer warpgroup of Hopper's forward that ends each tile of keys before
// the next: scores, softmax, results
#pragma once

#include "codegen/cuda/forward_sm90/consumer.cuh"

namespace attune {

/// For groups whose operands leave no registers for the scores of the next tile: the softmax of a warpgroup overlaps
/// the products of the other warpgroup alone. Group: Warpgroup3Tf32 of forward_f32_sm90.cuh or a similar type. With
/// Group::turns_of_both a turn lasts from the products with a tile's values to the scores of the next tile, else it has
/// the scores alone.
template <class Group, class Tile, class User>
struct ForwardInTurn90 : ForwardConsumer90<Group, Tile, User> {
  using Base = ForwardConsumer90<Group, Tile, User>;
  using Base::Base;
  using Base::g, Base::k, Base::q;
  using typename Base::Shared;
  static constexpr bool turns_of_both = Group::turns_of_both && Tile::issue_order != 0,
                        turns_of_scores = !Group::turns_of_both && Tile::issue_order != 0;

  /// A row without a maximum has no results, so its first tile may scale them.
  template <bool Partial>
  __device__ void visit(int tile, bool recomputing) {
    const Ring<Tile::stages> v(this->shared + Shared::v_full, k);
    g.template read_columns<Partial>(tile);
    g.template look_ahead<Partial>(tile);
    g.draw(tile);
    k.wait();
    if constexpr (turns_of_scores) this->wait_for_turn();
    g.scores(q.stage, k.stage);
    if constexpr (Base::issue_ordered) this->pass_turn();
    g.wait_for_scores();
    if constexpr (Base::products_ordered) this->pass_turn();
    k.release(g.lane);
    g.template weigh<Partial>(tile, false, recomputing);
    g.rescale();
    pin(g.s);  // powers are computed before the wait, not one by one where products need them
    g.prepare_values();
    if constexpr (turns_of_both) this->wait_for_turn();
    v.wait();
    g.values(v.stage);
    v.release(g.lane);
    k.next();
  }

  /// Full and partial tiles have separate code. All warps of a warpgroup must issue the same products, so no value of a
  /// single warp decides which.
  __device__ void walk(const Walk& walk, bool recomputing) {
    q.wait();
    if constexpr (turns_of_both) this->wait_for_turn();
    int next = walk.last;
    int i = 0;
#pragma unroll 1
    while (i < walk.count) {
      visit<true>(next, recomputing);
      next = walk.tile(++i);
#pragma unroll 1
      for (; !(g.lean && recomputing) && walk.is_full(i) && g.is_inside(next); next = walk.tile(++i))
        visit<false>(next, recomputing);
    }
    if constexpr (turns_of_both) this->pass_turn();
    if constexpr (Tile::own_o) {
      q.release(g.lane);
      q.next();
    }
  }

  __device__ void run() {
    if (Tile::issue_order && g.group == Base::groups - 1) this->pass_turn();
    this->me = uniform(4 * g.group + g.warp);
    for (;;) {
      const Item now = this->next_item();
      if (now.index == Item::stop) break;
      if (now.index == Item::pause) {
        this->report_found();
        continue;
      }
      const bool recomputing = now.owners != Item::all;
      g.enter(now);
      if (now.walk.count > 0) walk(now.walk, recomputing);
      this->epilogue(now, recomputing, now.owners >> this->me & 1);
    }
    // Results of 32 bits leave from registers.
    if (sizeof(typename Tile::Out) == 2 && g.lane == 0) store_wait();
  }
};

}  // namespace attune

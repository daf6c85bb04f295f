// codegen/cuda/parts/forward_in_turn_sm90.cuh — a consumer warpgroup of Hopper's forward that ends each tile of keys
// before the next: scores, softmax, results
#pragma once

#include "codegen/cuda/parts/forward_consumer_sm90.cuh"

namespace attune {

/// For groups whose operands leave no registers for the scores of the next tile: the softmax of a warpgroup overlaps
/// the products of the other warpgroup alone. Group: Warpgroup3Tf32 of forward_f32_sm90.cuh or a similar type.
template <class Group, class Tile, class User>
struct ForwardInTurn90 : ForwardConsumer90<Group, Tile, User> {
  using Base = ForwardConsumer90<Group, Tile, User>;
  using Base::Base;
  using Base::g, Base::k, Base::q;
  using typename Base::Shared;

  /// A row without a maximum has no results, so its first tile may scale them.
  template <bool Partial>
  __device__ void visit(int tile, bool recomputing) {
    const Ring<Tile::stages> v(this->shared + Shared::v_full, k);
    g.template read_columns<Partial>(tile);
    g.template look_ahead<Partial>(tile);
    k.wait();
    if constexpr (Tile::issue_order != 0) this->wait_for_turn();
    g.scores(q.stage, k.stage);
    if constexpr (Tile::issue_order != 0) this->pass_turn();
    k.release(g.lane);
    g.template weigh<Partial>(tile, false, recomputing);
    g.rescale();
    pin(g.s);  // powers are computed before the wait, not one by one where products need them
    v.wait();
    g.values(v.stage);
    v.release(g.lane);
    k.next();
  }

  /// Full and partial tiles have separate code. All warps of a warpgroup must issue the same products, so no value of a
  /// single warp decides which.
  __device__ void walk(const Walk& walk, bool recomputing) {
    q.wait();
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
    q.release(g.lane);
    q.next();
  }

  __device__ void run() {
    if (Tile::issue_order && g.group == Base::groups - 1) this->pass_turn();
    this->me = uniform(4 * g.group + g.warp);
    for (;;) {
      const Item now = this->next_item();
      if (now.index == Item::stop) return;
      if (now.index == Item::pause) {
        this->report_found();
        continue;
      }
      const bool recomputing = now.owners != Item::all;
      g.enter(now);
      if (now.walk.count > 0) walk(now.walk, recomputing);
      this->epilogue(now, recomputing, now.owners >> this->me & 1);
    }
  }
};

}  // namespace attune

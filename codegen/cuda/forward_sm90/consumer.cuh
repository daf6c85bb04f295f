// codegen/cuda/forward_sm90/consumer.cuh — a consumer warpgroup of Hopper's forward: prologue, main loop over tiles of
// keys, epilogue; or two walks over the keys, for sums and then for results; or tile after tile
#pragma once

#include "codegen/cuda/forward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/wgmma.cuh"

namespace attune {

/// Group: the registers it computes with, Warpgroup90 of forward_sm90.cuh or a similar type.
template <class Group, class Tile, class User>
struct ForwardConsumer90 {
  using Shared = Shared90<Tile>;
  static constexpr int groups = Tile::m / 64;
  static constexpr bool issue_ordered = Tile::issue_order == 1, products_ordered = Tile::issue_order == 2;
  /// Also true for packed sequences: keys past the end belong to the next sequence.
  static constexpr bool removes = User::traits.masked || is_packed<Tile>;

  Group g;
  Shared90<Tile> shared;
  Ring<Tile::q_stages> q;
  Ring<Tile::stages> k;
  Recompute<Tile> recompute;
  Items<Tile, User> items;
  int me = 0;                       ///< this warp, counted among the block's consumer warps
  int found = 0;                    ///< tiles to recompute
  int late = 0;                     ///< tiles of keys that this warpgroup leaves out at the beginning
  Place<Tile::stages> with_values;  ///< with two walks: of the keys as if there were those of second walks alone

  __device__ ForwardConsumer90(const ForwardArgs& args, const User& user, Shared90<Tile> shared, int group, int thread)
      : g{args, user, shared, group, thread % 32, thread / 32}, shared(shared), q(shared.q_full()),
        k(shared.k_full()), recompute{shared}, items{args, shared} {}

  // Warpgroups issue in turns: each waits at its own barrier, and the warpgroup before it arrives there.
  __device__ void wait_for_turn() const { named_sync(issue_turn + g.group, 2 * warpgroup_threads); }
  __device__ void pass_turn() const { named_arrive(issue_turn + (g.group + 1) % groups, 2 * warpgroup_threads); }

  /// The ring of values: one tile after the keys. A first walk loads keys alone.
  __device__ Ring<Tile::stages> values() const {
    if constexpr (two_walks<User>)
      return Ring<Tile::stages>(shared.v_full(), with_values.before());
    else
      return Ring<Tile::stages>(shared.v_full(), k.before());
  }
  /// This warp has read the keys, whose values follow.
  __device__ void release_keys() {
    k.release(g.lane);
    k.next();
    if constexpr (two_walks<User>) with_values.next();
  }

  __device__ Item next_item() {
    Item item = items.template take<true>();
    if constexpr (begins_late<Tile, User>) {
      late = items.late >> 4 * g.group & 15;
      item.walk.last -= late;
      item.walk.count -= late;
      item.walk.first -= late;
    }
    __syncwarp();
    if (g.lane == 0) items.done();
    return item;
  }

  /// S = Q K^T of the first tile of keys is issued even if there are no keys, so that the compiler sees one flow of
  /// products.
  __device__ void prologue(const Item& item) {
    if (item.walk.count > 0) {
      q.wait();
      g.prepare_queries(q.stage);
      if constexpr (begins_late<Tile, User>)
#pragma unroll 1
        for (int i = 0; i < late; ++i) {
          k.wait();
          k.release_as_warp(g.lane);
          k.next();
        }
      k.wait();
    }
    if constexpr (issue_ordered) wait_for_turn();
    pin(g.s);
    wgmma_fence();
    g.scores(q.stage, k.stage);
    if constexpr (issue_ordered) pass_turn();
  }

  /// P = exp2(S - max) of the first tile of keys.
  __device__ void first_tile(const Item& now, bool recomputing) {
    release_keys();
    g.copy_ahead(now.walk.tile(1), now.walk.count > 1);
    g.template weigh<true>(now.walk.last, true, recomputing);
    g.operand();
    if constexpr (begins_late<Tile, User>) leave_out();
  }

  /// The values and the turns of the tiles that are left out.
  __device__ void leave_out() {
    Ring<Tile::stages> v = values();
#pragma unroll 1
    for (int i = 0; i < late; ++i) v = Ring<Tile::stages>(v.barriers, v.before());
#pragma unroll 1
    for (int i = 0; i < late; ++i) {
      if constexpr (issue_ordered || products_ordered) {
        wait_for_turn();
        pass_turn();
      }
      v.wait();
      v.release_as_warp(g.lane);
      v.next();
    }
  }

  /// One tile of keys: issues S = Q K^T, then O += P V of the previous tile, and computes P = exp2(S - max) while P V
  /// runs. `next` is the tile; afterwards it is the tile that follows.
  template <bool Partial>
  __device__ void iteration(const Walk& walk, int i, int& next, bool recomputing) {
    const int tile = next;
    const Ring<Tile::stages> v = values();
    k.wait();
    if constexpr (issue_ordered || products_ordered) wait_for_turn();
    pin(g.s);
    g.pin_products();
    wgmma_fence();
    g.scores(q.stage, k.stage);
    v.wait();
    g.values(v.stage, i > 1);
    if constexpr (issue_ordered) pass_turn();
    g.take_numbers(k);
    g.template read_columns<Partial>(tile);
    g.template look_ahead<Partial>(tile);
    g.draw(tile);
    next = walk.tile(i + 1);
    g.copy_ahead(next, i + 1 < walk.count);
    wgmma_wait<1>();
    if constexpr (products_ordered) pass_turn();
    pin(g.s);
    release_keys();
    g.template weigh<Partial>(tile, false, recomputing);
    wgmma_wait<0>();
    g.pin_products();
    v.release(g.lane);
    g.take_in();
    g.operand();
    g.rescale();
  }

  /// The tiles of keys after the first; full and partial tiles have separate iterations. All warps of a warpgroup must
  /// issue the same products, so no value of a single warp decides which.
  __device__ void main_loop(const Walk& walk, bool recomputing) {
    int next = walk.tile(1);
    int i = 1;
#pragma unroll 1
    while (i < walk.count) {
#pragma unroll 1
      for (; !(g.lean && recomputing) && walk.is_full(i) && g.is_inside(next); ++i)
        iteration<false>(walk, i, next, recomputing);
      if (i == walk.count) break;
      iteration<true>(walk, i++, next, recomputing);
    }
    if constexpr (Tile::own_o) {
      q.release(g.lane);
      q.next();
    }
    values().wait();
  }

  /// Tells the tile scheduler how many tiles this warp has to recompute.
  __device__ void report_found() {
    if (g.lane == 0) recompute.put(me, 0, found);
    __syncwarp();
    if (g.lane == 0) barrier_arrive(shared.known());
    found = 0;
  }

  /// Puts the tile on this warp's list, so that the tile is scheduled again.
  __device__ void recompute_later(int index) {
    ++found;
    if (g.lane == 0) recompute.put(me, found, index);
    if (g.lane == 0 && found == Shared::at.recompute_most - items_ahead<Tile>) recompute.set_list_full(true);
  }

  /// O = O / l; stores O, lse and max.
  __device__ void epilogue(const Item& now, bool recomputing, bool mine) {
    if constexpr (is_in_parts<Tile>) g.part = now.index % parts_of_keys<Tile>(g.args);
    bool by_pairs = false;
    if constexpr (recomputes<Tile, User> || removes) {
      // The sum of powers is infinite or NaN: the maximum was too low, or scores are infinite or NaN. Or it was raised
      // too high.
      const bool high = g.is_high();
      const bool low = recomputes<Tile, User> && !recomputing && (!(g.l[0] < 3e38f && g.l[1] < 3e38f) || high);
      const bool non_finite = removes && now.walk.count > now.walk.full && g.has_non_finite();
      if (__any_sync(~0u, low || non_finite)) {
        if (recomputes<Tile, User> && __any_sync(~0u, low)) {
          mine = false;
          recompute_later(now.index);
        } else {
          by_pairs = true;
        }
      }
    }
    if (by_pairs) {
      if constexpr (removes)
        if (mine) g.by_pairs(now.work, now.walk);
      mine = false;
    } else {
      g.finish(now.work, now.walk.count == 0, mine);
    }
    store(now, mine);
  }

  /// The memory for results is free once previous results have left, or once the whole warpgroup is done with Q, or
  /// once all warps are done with these values.
  __device__ void store(const Item& now, bool mine) {
    unsigned memory = 0;
    if constexpr (leave_over_values<Tile>) {
      Place<Tile::stages> place = values();
      for (int i = g.group; i < groups - 1; ++i) place = place.before();
      if (mine) Ring<Tile::stages>(shared.v_full(), place).wait_until_read();
      memory = shared.v()[place.stage];
    } else if constexpr (Tile::own_o) {
      if (g.lane == 0) store_wait_read();
      __syncwarp();
    } else {
      if (now.walk.count == 0) q.wait();
      named_sync(queries_read + g.group, warpgroup_threads);
    }
    if (mine) g.store(now.work, memory);
    if constexpr (!Tile::own_o) {
      if (g.lane == 0) store_wait_read();
      __syncwarp();
      q.release(g.lane);
      q.next();
    }
  }

  /// Tells the producer that this warp's results no longer need the memory of values.
  __device__ void report_left() const {
    if (g.lane == 0) {
      store_wait_read();
      barrier_arrive(shared.results_left());
    }
    __syncwarp();
  }

  __device__ void run() {
    if (Tile::issue_order && g.group == groups - 1) pass_turn();
    me = uniform(4 * g.group + g.warp);
    Item item = next_item();
    // Undefined registers: the compiler would move them while products are under way.
    for (float& x : g.o) x = 0;
    for (unsigned& x : g.p) x = 0;
    g.pin_products();
    prologue(item);
    for (;;) {
      const Item now = item;
      const bool recomputing = now.owners != Item::all, mine = now.owners >> me & 1;
      g.enter(now);
      if (now.walk.count > 0) {
        g.take_numbers(k);
        g.template read_columns<true>(now.walk.last);
        g.template look_ahead<true>(now.walk.last);
        g.draw(now.walk.last);
        g.copy(now.walk.last);
      }
      wgmma_wait<0>(g.s);
      if (now.walk.count > 0) {
        first_tile(now, recomputing);
        main_loop(now.walk, recomputing);
      }
      // O += P V of the last tile.
      const Ring<Tile::stages> v = values();
      g.pin_products();
      wgmma_fence();
      g.values(v.stage, now.walk.count > 1);
      const bool there = now.index >= 0;
      if (!there) report_found();
      wgmma_wait<0>();
      g.pin_products();
      g.take_in();
      if (there) {
        if (now.walk.count > 0) v.release(g.lane);
        epilogue(now, recomputing, mine);
      }
      item = next_item();
      prologue(item);
      if constexpr (leave_over_values<Tile>)
        if (there) report_left();
      if (item.index == Item::stop) break;
    }
    wgmma_wait<0>(g.s);
    if (g.lane == 0) store_wait();
  }
};

// ---- two walks, under a prob mod that is no multiple of a power of p -----------------------------------------------

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
    g.copy(walk.last);
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
    wgmma_wait<0>(g.s);
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

// ---- each tile of keys ends before the next: scores, softmax, results -----------------------------------------------

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
    const Ring<Tile::stages> v(this->shared.v_full(), k);
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

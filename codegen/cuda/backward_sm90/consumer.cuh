// codegen/cuda/backward_sm90/consumer.cuh — what a consumer warpgroup of Hopper's backward does: a prologue for each
// item of keys, an iteration for each tile of queries, an epilogue
//
// An order (Tile::order) is the sequence of a step's products; orders differ in those that are under way while a
// warpgroup computes. Each is a text of its own, step().
#pragma once

#include "codegen/cuda/backward_sm90/warpgroup.cuh"

namespace attune {

template <class Tile, class User>
struct BackwardConsumer90 : BackwardWarpgroup90<Tile, User> {
  using Group = BackwardWarpgroup90<Tile, User>;
  using Group::add_keys, Group::add_values, Group::enter, Group::flows, Group::give_diagonals, Group::give_sums,
      Group::join, Group::products_of_queries, Group::put_sums, Group::read_fields, Group::remove, Group::scores,
      Group::share, Group::store_ds, Group::wait_for_diagonals, Group::wait_for_stored_ds, Group::weigh,
      Group::weigh_and_join, Group::word;
  using Group::args, Group::dk, Group::dp, Group::dv, Group::group, Group::lane, Group::order, Group::s, Group::shared,
      Group::warp;
  static_assert(Tile::stages == 2);

  /// The number of steps, and in the last bit the phase of keys, together because registers are short.
  unsigned clock = 0;
  static constexpr unsigned keys_bit = 1u << 31;

  __device__ int stage_now() const { return uniform(static_cast<int>(clock & 1)); }
  __device__ static unsigned phase_of(unsigned clock) { return clock >> 1 & 1; }
  __device__ void wait() const { shared.full()[clock & 1].wait(phase_of(clock)); }
  __device__ void release_stage(int stage) const { arrive_as_warp(shared.full()[stage].empty(), lane); }

  __device__ void clear() {
    for (float& x : dk) x = 0;
    for (float& x : dv) x = 0;
    pin(dk);
    pin(dv);
  }
  /// An item's first products overwrite dK and dV, which saves clear(), and finite results are told from what is
  /// stored. Not in narrow heads, where ptxas then serialises products (C7511).
  static constexpr bool is_narrow = Tile::d < 64;
  static __device__ int adds(int what) { return is_narrow ? 1 : !(what & Step::first); }

  /// An item that no queries visit: takes one step in all rings.
  __device__ void pass() {
    if constexpr (!is_narrow) clear();
    release_stage(stage_now());
    this->wait_for_sums(stage_now(), phase_of(clock));
    give_sums(stage_now());
    wait_for_diagonals(stage_now(), phase_of(clock));
    give_diagonals(stage_now());
    this->give_copied();
    ++clock;
  }

  /// Waits for keys and values; in order 2, issues S = K Q^T of the first step.
  __device__ void prologue() {
    barrier_wait(shared.k_full(), clock >> 31);
    barrier_wait(shared.v_full(), clock >> 31);
    pin(dk);
    pin(dv);
    if constexpr (order == 2) {
      scores(stage_now());
      wgmma_wait<0>(s);
    }
  }

  // ---- one tile of queries, in each order ----

  template <int>
  struct Order {};
  /// Returns the `what` of the step.
  __device__ int iteration() {
    const int stage = stage_now(), what = word(clock, 0);
    step(Order<order>{}, stage, what);
    return what;
  }

  /// Waits for S while dP runs, and masks pairs out; what that needs is read before.
  /// Written out in both steps, this makes other machine code (documents at D=64).
  __device__ void await_scores(int what) {
    const auto fields = read_fields(what & Step::whole);
    wgmma_wait<1>(s);
    remove(what & Step::whole, fields);
  }
  /// dS is in shared memory, and products may read it once both warpgroups have passed the barrier.
  __device__ void hand_in_ds(int stage) {
    wait_for_diagonals(stage, phase_of(clock));
    share(stage);
    give_diagonals(stage);
  }

  /// No product is under way while P and dS are computed.
  __device__ void step(Order<0>, int stage, int what) {
    scores(stage);  // S = K Q^T
    flows(stage);   // dP = V dO^T
    enter(clock);
    wgmma_wait<0>(s, dp);
    remove(what & Step::whole);
    weigh_and_join(stage);          // P = exp2(S - lse), dS = P (dP - delta)
    add_values(stage, adds(what));  // dV += P^T dO
    hand_in_ds(stage);
    add_keys(stage, adds(what));  // dK += dS^T Q
    proxy_fence();
    named_sync(ds_shared, 2 * warpgroup_threads);
    store_ds(stage, clock);
    products_of_queries(stage);  // dQ = dS K
    end_step(stage, what);
  }

  /// dP runs while P is computed, and dV while dS is.
  __device__ void step(Order<1>, int stage, int what) {
    scores(stage);  // S = K Q^T
    flows(stage);   // dP = V dO^T
    enter(clock);
    await_scores(what);
    weigh(stage);                   // P = exp2(S - lse)
    add_values(stage, adds(what));  // dV += P^T dO
    wgmma_wait<1>(dp);
    join(stage);  // dS = P (dP - delta)
    hand_in_ds(stage);
    add_keys(stage, adds(what));  // dK += dS^T Q
    proxy_fence();
    named_sync(ds_shared, 2 * warpgroup_threads);
    store_ds(stage, clock);
    products_of_queries(stage);  // dQ = dS K
    end_step(stage, what);
  }
  /// Waits for dQ and hands it over.
  __device__ void end_step(int stage, int what) {
    wgmma_wait<0>(dp, dk, dv);
    wait_for_stored_ds();
    release_stage(stage);
    put_sums(stage, phase_of(clock), clock, what);
    proxy_fence();
    give_sums(stage);
    ++clock;
    if (!(what & Step::last)) wait();
  }

  /// As order 1; also, the next S runs while dQ is stored. dQ is handed over after the next dS, because a separate
  /// fence at that point cost 1 %.
  __device__ void step(Order<2>, int stage, int what) {
    flows(stage);  // dP = V dO^T
    enter(clock);
    remove(what & Step::whole, read_fields(what & Step::whole));
    weigh(stage);                   // P = exp2(S - lse)
    add_values(stage, adds(what));  // dV += P^T dO
    wgmma_wait<1>(dp);
    join(stage);  // dS = P (dP - delta)
    hand_in_ds(stage);
    add_keys(stage, adds(what));  // dK += dS^T Q
    proxy_fence();
    if (!(what & Step::first)) give_sums(stage ^ 1);
    named_sync(ds_shared, 2 * warpgroup_threads);
    store_ds(stage, clock);
    products_of_queries(stage);  // dQ = dS K
    ++clock;
    // After the last step these products compute unused values: a branch around them would serialise all products.
    if (!(what & Step::last)) wait();
    // dS has to leave its registers first; dQ is under way.
    wgmma_wait<1>();
    scores(stage ^ 1);  // S = K Q^T of the next step
    wgmma_wait<1>(dp, dk, dv);
    wait_for_stored_ds();
    release_stage(stage);
    put_sums(stage, phase_of(clock - 1), clock - 1, what);
    if (what & Step::last) {
      proxy_fence();
      give_sums(stage);
    }
    wgmma_wait<0>(s);
  }

  /// S and dP run together, and P is rounded late, because dV follows dS. dQ comes before dK, and is stored while dK's
  /// product runs, which reads half as much shared memory as S; it is handed over during the next S and dP. No product
  /// is in flight at the loop's back edge.
  __device__ void step(Order<3>, int stage, int what) {
    if constexpr (has_rests<Tile, User>)
      if (what & Step::rests << group) return rest(stage, what);
    await_issue(scores_issued);
    scores(stage);  // S = K Q^T
    flows(stage);   // dP = V dO^T
    pass_issue(scores_issued);
    proxy_fence();
    if (!(what & Step::first)) give_sums(stage ^ 1);
    enter(clock);
    await_scores(what);
    weigh(stage);  // P = exp2(S - lse)
    wgmma_wait<0>(dp);
    join(stage);  // dS = P (dP - delta)
    hand_in_ds(stage);
    add_values(stage, adds(what));  // dV += P^T dO
    proxy_fence();
    named_sync(ds_shared, 2 * warpgroup_threads);
    store_ds(stage, clock);
    await_issue(dq_issued);
    products_of_queries(stage);   // dQ = dS K
    add_keys(stage, adds(what));  // dK += dS^T Q
    pass_issue(dq_issued);
    wgmma_wait<1>(dp, dv);
    if (what & Step::last) give_back_keys();
    put_sums(stage, phase_of(clock), clock, what);
    wgmma_wait<0>(dk);
    wait_for_stored_ds();
    leave(stage, what);
  }
  /// dQ is handed over during the next step, if there is one.
  __device__ void leave(int stage, int what) {
    release_stage(stage);
    if (what & Step::last) {
      proxy_fence();
      give_sums(stage);
    }
    ++clock;
    if (!(what & Step::last)) wait();
  }
  /// A step whose queries see none of this warpgroup's keys. Its dS is 0, since dQ sums over all keys.
  __device__ void rest(int stage, int what) {
    if (what & Step::first) {
      clear();
    } else {
      proxy_fence();
      give_sums(stage ^ 1);
    }
    for (unsigned& x : this->ds) x = 0;
    share(stage);
    proxy_fence();
    named_sync(ds_shared, 2 * warpgroup_threads);
    products_of_queries(stage);
    wgmma_wait<0>(dp);
    if (what & Step::last) give_back_keys();
    put_sums(stage, phase_of(clock), clock, what);
    leave(stage, what);
  }

  /// The second warpgroup issues S and dP after the first one's, and dQ and dK likewise. Otherwise products of both
  /// interleave, both warpgroups wait for theirs until the end, and tensor cores idle while both compute P and dS. This
  /// gained 0 to 2 % at D=128, and lost 1 % at D=64. Not measured where dQ is complete or completed, nor with copies.
  static constexpr bool in_turn = Tile::m < 128 && !completes_dq<Tile> && !is_alone<Tile> && !Group::copies;
  __device__ void await_issue(NamedBarrier issued) const {
    if constexpr (in_turn)
      if (group == 1) named_sync(issued, 2 * warpgroup_threads);
  }
  __device__ void pass_issue(NamedBarrier issued) const {
    if constexpr (in_turn)
      if (group == 0) named_arrive(issued, 2 * warpgroup_threads);
  }
  static_assert(!in_turn || !has_rests<Tile, User>, "a warpgroup that rests passes no turn on");

  /// The next keys and values may load. Order 3 allows it while the item's last product runs, dK's.
  __device__ void give_back_keys() const { arrive_as_warp(shared.keys_empty(), lane); }

  __device__ void look_for_non_finite() const {
    if constexpr (User::gradient.removes || is_packed<Tile>)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dk) || has_non_finite(dv)) && lane == 0)
        *args.non_finite = 1;
  }

  /// Stores dK and dV.
  __device__ void epilogue(int what) {
    if (order != 3 || what & Step::empty) give_back_keys();
    const unsigned step = clock - 1;
    const int b = word(step, 2), kv_head = word(step, 5);
    const int keys = word(step, 4) * Tile::n + 64 * group + 16 * warp;
    // Results pass through the memory of dS, so all must be done with dS.
    for (unsigned before = 1; before <= Tile::stages; ++before)
      wait_for_diagonals(static_cast<int>(clock - before & 1), phase_of(clock - before) ^ 1);
    named_sync(ds_shared, 2 * warpgroup_threads);
    const Range keys_of{word(step, 10), word(step, 11)};
    if constexpr (is_narrow) look_for_non_finite();
    const bool any = this->store_keys(b, kv_head, keys, keys_of);
    if constexpr (!is_narrow)
      if (__any_sync(~0u, any)) look_for_non_finite();
    // Each warp's dS is spread over its warpgroup's part.
    named_sync(results_staged + group, warpgroup_threads);
    if constexpr (Group::copies) arrive_as_warp(shared.results_empty(), lane);
  }

  __device__ void run() {
#pragma unroll 1
    for (;;) {
      if constexpr (is_narrow) clear();
      wait();
      const int what = word(clock, 0);
      if (what & Step::stop) break;
      if (what & Step::empty) {
        pass();
      } else {
        prologue();
#pragma unroll 1
        while (!(iteration() & Step::last)) {
        }
        clock ^= keys_bit;
        if constexpr (Group::sums_items) this->give_item_sums();
      }
      epilogue(what);
    }
  }
};

}  // namespace attune

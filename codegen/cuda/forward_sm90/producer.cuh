// codegen/cuda/forward_sm90/producer.cuh — the producer warp of Hopper's forward: loads queries, keys and values into
// rings of stages
#pragma once

#include "codegen/cuda/forward_sm90/key_source.cuh"

namespace attune {

template <class Tile, class User, Loads what = Loads::all>
struct ForwardProducer90 {
  using Shared = Shared90<Tile>;
  using Source = typename KeySourceOf<Tile>::Type;
  static_assert(KeySource<Source>);
  static constexpr bool has_keys = what != Loads::values, has_values = what != Loads::keys;

  const ForwardArgs& args;
  unsigned shared;
  int lane;
  Ring<Tile::q_stages> q{shared + Shared::q_full};
  Ring<Tile::stages> k{shared + Shared::k_full}, v{shared + Shared::loaded_full};
  Items<Tile, User> items{args, shared};
  Source source{args, shared};
  unsigned results_phase = 1;  ///< parity of what results_left has completed

  /// True if this lane of the producer warp loads.
  __device__ static bool loads() {
    if constexpr (Source::threads == 1) return elected();
    return true;
  }

  __device__ void run() {
    for (;;) {
      const Item item = items.template take<false>();
      if (item.index == Item::stop) return;
      if (item.walk.count > 0) {
        load(item);
      } else {
        // Consumers need no loads for the next item, and must not get two items ahead of this phase.
        if (item.index >= 0) {
          if (has_values) wait_for_results();
          if (has_keys) lend_queries();
        }
        let_schedule();
      }
    }
  }

  /// The next tile may be scheduled. Scheduling it much sooner than it can be loaded makes blocks end less evenly.
  __device__ void let_schedule() const {
    if constexpr (Source::threads > 1) __syncwarp();
    if (speaks()) items.done();
  }

  /// Waits until the results of the tile of queries before have left the memory of values.
  __device__ void wait_for_results() {
    if constexpr (leave_over_values<Tile>) {
      barrier_wait(shared + Shared::results_left, results_phase);
      results_phase ^= 1;
    }
  }

  /// Results of a tile of queries without keys take a phase of the memory of queries, too, if they leave through it.
  __device__ void lend_queries() {
    if constexpr (!Tile::own_o) {
      q.acquire();
      if (speaks()) barrier_arrive(q.full());
      q.next();
    }
  }

  /// True if this thread arrives for the warp.
  __device__ bool speaks() const { return Source::threads == 1 || lane == 0; }

  __device__ void load_queries(const Item& item) {
    const Work& work = item.work;
    const int head = work.heads.first / args.group, batch = is_packed<Tile> ? 0 : work.b,
              position = item.entry.queries.start + work.tile * queries_of<Tile>;
    q.acquire();
    if (Source::threads == 1 || elected()) load_boxes(work, head, batch, position);
    q.next();
  }
  __device__ void load_boxes(const Work& work, int head, int batch, int position) const {
    barrier_expect(q.full(), Shared::q_bytes);
    for (int c = 0; c < Shared::d_chunks; ++c) {
      const unsigned into = shared + Shared::q + q.stage * Shared::q_bytes + c * Tile::m * chunk_bytes;
      if constexpr (Tile::heads == 1)
        load_box(into, args.q_map, q.full(), c * Shared::chunk, position, work.heads.first, batch);
      else
        load_box_of_heads(into, args.q_map, q.full(),
                          {c * Shared::chunk, work.heads.first % args.group, position, head, batch});
    }
  }

  /// Loads the keys of each tile, for a first walk that has no use for values; `queries` after the first ones.
  __device__ void load_keys(const Item& item, bool queries) {
    const Walk& walk = item.walk;
    typename Source::Places here = source.look_up(walk.last * Tile::n), next = source.look_up(walk.tile(1) * Tile::n);
#pragma unroll 1
    for (int i = 0; i < walk.count; ++i) {
      k.acquire();
      source.load_keys(shared + Shared::k + k.stage * Shared::k_bytes, k.full(), here);
      k.next();
      if (queries && i == 0) load_queries(item);
      here = next;
      next = source.look_up(walk.tile(i + 2) * Tile::n);
    }
  }

  /// Loads the queries, then the keys of each tile and the values of the tile before, or in_turn those of the tile.
  __device__ void load(const Item& item) {
    // With one stage of queries, the first keys can load before the previous tile is done with its queries. A whole
    // warp that loads both has no registers for it, and none to schedule early.
    constexpr bool light = Source::threads == 1 || what != Loads::all, keys_first = Tile::q_stages == 1 && light;
    // One warp loads the values of a tile after the keys of the next tile.
    constexpr bool behind = what == Loads::all && !in_turn<Tile>;
    const Walk& walk = item.walk;
    if (has_keys && !keys_first) load_queries(item);
    source.enter(item.work.b, item.work.heads.first / args.group, item.entry);
    if constexpr (two_walks<User> && has_keys) load_keys(item, keys_first);
    // Lists and places are read one tile ahead of the loads.
    typename Source::Places here = source.look_up(walk.last * Tile::n), before{},
                            next = source.look_up(walk.tile(1) * Tile::n);
#pragma unroll 1
    for (int i = 0; i < walk.count + behind; ++i) {
      // Scheduling takes as long as a tile of keys.
      if (light && i == walk.count - 1) let_schedule();
      if (has_keys && i < walk.count) {
        k.acquire();
        source.load_keys(shared + Shared::k + k.stage * Shared::k_bytes, k.full(), here);
        k.next();
        if (keys_first && !two_walks<User> && i == 0) load_queries(item);
      }
      if (has_values && i >= behind) {
        v.acquire();
        if (i == behind) wait_for_results();
        source.load_values(shared + Shared::loaded + v.stage * Shared::loaded_bytes, v.full(), behind ? before : here);
        v.next();
      }
      if constexpr (behind) before = here;
      here = next;
      next = source.look_up(walk.tile(i + 2) * Tile::n);
    }
    if (!light) let_schedule();
  }
};

}  // namespace attune

// codegen/cuda/mla_sm90/producer.cuh — the producer threads of MLA on Hopper: load TMA boxes of keys (dense, packed or
// paged) and the queries
#pragma once

#include "codegen/cuda/mla_sm90/items.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// The coordinates of a key tile's TMA boxes. A missing box lies outside the tensor, so TMA fills it with 0.
template <class Tile>
struct MlaBoxes {
  static constexpr int boxes = Tile::n / Tile::box;
  static_assert(boxes * Tile::box == Tile::n && Tile::box % 8 == 0);
  int position[boxes], batch[boxes];  ///< batch: the page, if keys are paged

  /// Looks up the boxes of the tile that starts at key `first`.
  __device__ void look_up(const MlaTile<Tile>& of, const Pages& pages, int entry, int first) {
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
      const int row = first + i * Tile::box;
      const bool there = row < of.keys.length;
      if constexpr (Tile::paged) {
        const Pages::At at = there ? pages.at(row) : Pages::At{-1, 0};
        position[i] = at.row;
        batch[i] = at.page;
      } else {
        position[i] = of.keys.start + row;
        batch[i] = there ? entry : -1;
      }
    }
  }
  /// The same boxes, once page numbers have arrived: a missing page goes outside the tensor.
  __device__ MlaBoxes checked(const Pages& pages) const {
    MlaBoxes out;
#pragma unroll
    for (int i = 0; i < boxes; ++i) {
      out.position[i] = position[i];
      out.batch[i] = !Tile::paged || pages.exists(batch[i]) ? batch[i] : -1;
    }
    return out;
  }
};

/// A thread loads the queries, in the order in which the first warpgroup multiplies them, and computes the items.
template <class Tile, class User>
struct MlaQueryProducer90 {
  using Shared = SharedMla<Tile>;

  const MlaArgs& args;
  const User& user;
  const SplitRange& split;
  unsigned shared;

  __device__ void load_queries(const MlaTile<Tile>& of, const MlaUnit& unit) const {
    const unsigned full = shared + Shared::at.q_full;
    const int position = of.queries.start + unit.first_query, batch = is_packed<Tile> && args.q_starts ? 0 : of.b,
              head = unit.first_head % of.group;
    barrier_expect(full, Shared::at.q_bytes);
#pragma unroll
    for (int nth = 0; nth < Shared::at.chunks; ++nth) {
      const int c = Shared::nth_chunk(0, nth);
      const unsigned into = shared + Shared::at.q + c * Tile::m * chunk_bytes;
      if constexpr (Tile::heads == 1)
        load_box(into, args.q_map, full, c * Shared::at.chunk, position, unit.first_head, batch);
      else
        load_box_of_heads(into, args.q_map, full, {c * Shared::at.chunk, head, position, of.kv_head, batch});
    }
  }

  __device__ void run() const {
    unsigned phase = 1;
#pragma unroll 1
    for (int tile = split.begin.tile; has_tile(split, tile); ++tile, phase ^= 1) {
      const MlaItem<Tile, User> item(args, user, split, tile);
      barrier_wait(shared + Shared::at.q_empty, phase);
      MlaItem<Tile, User>::place(shared, tile - split.begin.tile) = item;
      load_queries(item.of, item.unit);
    }
  }
};

/// A thread loads the tiles of one warpgroup.
template <int Group, class Tile, class User>
struct MlaProducer90 {
  using Shared = SharedMla<Tile>;

  const MlaArgs& args;
  const User& user;
  const SplitRange& split;
  unsigned shared;
  MlaPlace<Tile> place;

  /// Loads chunks that become free together. Not unrolled: the assembler prepares the boxes of all chunks ahead, and
  /// spills them.
  __device__ void load_chunks(const MlaBoxes<Tile>& from, int kv_head, int begin, int end) const {
    const int stage = 2 * place.stage + Group;
    barrier_wait(Shared::used(shared, stage, Shared::user_of(begin)), place.phase ^ 1);
#pragma unroll 1
    for (int c = begin; c < end; ++c) {
      const unsigned full = Shared::full(shared, stage, c);
      barrier_expect(full, Shared::at.chunk_size);
#pragma unroll
      for (int i = 0; i < MlaBoxes<Tile>::boxes; ++i)
        load_box(shared + Shared::at.keys + stage * Shared::at.stage_bytes + c * Shared::at.chunk_size +
                     i * Tile::box * chunk_bytes,
                 args.k_map, full, c * Shared::at.chunk, from.position[i], kv_head, from.batch[i]);
    }
  }
  /// Loads a tile of keys, in the order in which the stage's chunks become free.
  __device__ void load_keys(const MlaBoxes<Tile>& from, int kv_head) const {
    constexpr int half = Shared::at.half_chunks, values = Shared::at.v_chunks, all = Shared::at.chunks,
                  first = Shared::nth_chunk(Group, all - values);
    if constexpr (values < all) load_chunks(from, kv_head, values, all);
    load_chunks(from, kv_head, first, first + half);
    load_chunks(from, kv_head, half - first, values - first);
  }

  __device__ void run() {
#pragma unroll 1
    for (int tile = split.begin.tile; has_tile(split, tile); ++tile) {
      const MlaItem<Tile, User> item(args, user, split, tile);
      const MlaTile<Tile>& of = item.of;
      const Pages pages(args.page_table, of.b);
      const int entry = args.kv_shared || (is_packed<Tile> && args.kv_starts) ? 0 : of.b;
      // Boxes are looked up one step ahead.
      MlaBoxes<Tile> next;
      const auto look_up = [&](int step) {
        next.look_up(of, pages, entry, step < item.end ? item.walk.tile(step) * Tile::n : of.keys.length);
      };
      look_up(item.begin + Group);
#pragma unroll 1
      for (int step = item.begin + Group; step < item.begin + 2 * item.pairs; step += 2) {
        const MlaBoxes<Tile> now = next.checked(pages);
        look_up(step + 2);
        load_keys(now, of.kv_head);
        place.next();
      }
    }
  }
};

}  // namespace attune

// codegen/cuda/mla_sm90/items.cuh — the shared memory of mla_sm90.cuh, and the tiles and steps of a block's share
#pragma once

#include "codegen/cuda/mla_sm90/layout.cuh"
#include "codegen/cuda/mla_sm90/rows.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// Offsets into shared memory, from layout/.
template <class Tile>
struct SharedMla {
  static constexpr MlaLayout90 at{.m = Tile::m,
                                  .n = Tile::n,
                                  .d = Tile::d,
                                  .dv = Tile::dv,
                                  .stages = Tile::stages,
                                  .element = ElementOf<typename Tile::Element>::bytes};
  static constexpr int chunk = at.chunk, chunks = at.chunks, v_chunks = at.v_chunks, half_chunks = at.half_chunks,
                       chunk_size = at.chunk_size, stage_bytes = at.stage_bytes, q = at.q, keys = at.keys, p = at.p,
                       tops = at.tops, sums = at.sums, split = at.split, items = at.items, q_full = at.q_full,
                       q_empty = at.q_empty, stage_barriers = at.stage_barriers, of_stage = at.of_stage,
                       q_bytes = at.q_bytes, p_bytes = at.p_bytes, row_numbers = at.row_numbers, bytes = at.bytes;
  static_assert(at.split_bytes == sizeof(SplitRange));
  static constexpr int used_rest = 2;

  static __device__ unsigned full(unsigned shared, int stage, int chunk) {
    return shared + stage_barriers + stage * of_stage + 8 * chunk;
  }
  static __device__ unsigned used(unsigned shared, int stage, int what) {
    return shared + stage_barriers + stage * of_stage + 8 * (chunks + what);
  }
  /// The chunks of a warpgroup's stage in the order in which they become free: those without values, then both halves.
  static __device__ constexpr int nth_chunk(int group, int nth) {
    constexpr int rest = chunks - v_chunks;
    if (nth < rest) return v_chunks + nth;
    const int of_values = nth - rest;
    return group == (Tile::issue_order == 3) ? of_values : (of_values + half_chunks) % v_chunks;
  }
  static __device__ constexpr int user_of(int chunk) { return chunk >= v_chunks ? used_rest : chunk / half_chunks; }
};

/// Each warpgroup has every other stage, so a Place counts pairs of stages.
template <class Tile>
using MlaPlace = Place<Tile::stages / 2>;
/// The rank of a block in its cluster.
template <class Tile>
__device__ inline int cluster_rank() {
  if constexpr (Tile::cluster == 1) return 0;
  return static_cast<int>(blockIdx.x) % Tile::cluster;
}

// ---- which steps -------------------------------------------------------------------------------------------------

/// A tile of a share, and the share's steps of its walk: pairs of tiles of keys, one for each warpgroup.
template <class Tile, class User>
struct MlaItem {
  MlaTile<Tile> of;
  Walk walk;
  int begin, end, pairs;
  MlaUnit unit;  ///< of this block

  __device__ MlaItem(const MlaArgs& args, const User& user, const SplitRange& split, int tile)
      : of(MlaTile<Tile>::template of<Tile>(args, tile)), walk(of.template walk<Tile>(args, user)) {
    begin = tile == split.begin.tile ? split.begin.step : 0;
    end = tile == split.end.tile ? split.end.step : walk.count;
    pairs = (end - begin + 1) / 2;
    unit = of.unit(cluster_rank<Tile>());
  }
  __device__ bool whole() const { return begin == 0 && end == walk.count; }

  /// Where a producer thread puts the block's nth item before it loads the queries. If consumers computed it, with
  /// integer divisions and lengths from memory, the tensor cores would wait.
  __device__ static MlaItem& place(unsigned shared, int nth) {
    using Shared = SharedMla<Tile>;
    static_assert(sizeof(MlaItem) <= Shared::at.item_bytes && Shared::items % alignof(MlaItem) == 0);
    return *static_cast<MlaItem*>(__cvta_shared_to_generic(shared + Shared::items + (nth & 1) * Shared::at.item_bytes));
  }
  __device__ static MlaItem in(unsigned shared, int nth) {
    MlaItem out = place(shared, nth);
    out.walk.list = nullptr;  // always so in MLA; otherwise the main loop would have code for lists
    return out;
  }
};
__device__ inline bool has_tile(const SplitRange& split, int tile) {
  return tile < split.end.tile || (tile == split.end.tile && split.end.step > 0);
}

}  // namespace attune

// codegen/cuda/mla_sm90/items.cuh — tiles of queries in MLA: their rows, their ends, parts of them in memory; the
// shared memory of mla_sm90.cuh, and the tiles and steps of a block's share
#pragma once

#include "codegen/cuda/mla_sm90/layout.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/parts/split_kv_sm80.cuh"

namespace attune {

/// The rows of one block of a tile. A missing unit has no heads.
struct MlaUnit {
  int first_query, first_head, head_count;
};

/// A tile of queries. All of its blocks (a cluster of Tile::cluster) read the same keys. The queries and heads of a key
/// head are divided into units of Tile::m rows, sets of heads within tiles of queries; each block has one unit.
template <class Tile>
struct MlaTile : Entry {
  int b, kv_head, first_unit, units, group;

  __device__ static int workers() { return static_cast<int>(gridDim.x) / Tile::cluster; }
  __device__ static int worker() { return static_cast<int>(blockIdx.x) / Tile::cluster; }

  template <class>
  __device__ static MlaTile of(const DecodeArgs& args, int tile) {
    const DecodeTile one = DecodeTile::of<Tile>(args, tile);
    const int of_group = args.sets_of_group, nth = tile - (one.b * args.sets + one.kv_head * of_group);
    return {one,       one.b, one.kv_head, nth * Tile::cluster, q_tiles_of<Tile>(args.q_len) * head_sets(args.group),
            args.group};
  }
  __device__ static int head_sets(int group) { return (group + Tile::heads - 1) / Tile::heads; }
  __device__ int q_tile(int unit) const { return unit / head_sets(group); }
  __device__ MlaUnit unit(int rank) const {
    const int nth = first_unit + rank, sets = head_sets(group), tile = nth / sets,
              before = (nth - tile * sets) * Tile::heads;
    return {tile * queries_of<Tile>, kv_head * group + before, nth < units ? min(group - before, Tile::heads) : 0};
  }
  __device__ Where at(int head) const { return Entry::at(b, head); }

  /// The tiles of keys that any block of the cluster visits.
  template <class, class User>
  __device__ Walk walk(const DecodeArgs& args, const User& user) const {
    const int last_unit = min(first_unit + Tile::cluster, units) - 1, first = q_tile(first_unit) * queries_of<Tile>,
              end = min((q_tile(last_unit) + 1) * queries_of<Tile>, queries.length);
    if (first >= end) return {0, 0, 0, 0, nullptr};
    const Where where = at(kv_head * group + first_unit % head_sets(group) * Tile::heads);
    return walk_of<Tile>(args, user, *this, where, user.head(where), {first, end, 0, 1});
  }
};

template <class Tile, class User>
struct MlaRows {
  static constexpr int heads = Tile::heads;

  const MlaArgs& args;
  const User& user;
  const MlaTile<Tile>& of;
  const MlaUnit unit;

  __device__ int query(int row) const { return unit.first_query + row / heads; }
  /// Rows of missing heads repeat the last head.
  __device__ int head(int row) const { return unit.first_head + min(row % heads, max(unit.head_count, 1) - 1); }
  __device__ bool exists(int row) const { return row % heads < unit.head_count && query(row) < of.queries.length; }

  /// The factors of a row's results, and of its results over other keys. `put`: true if lse and max are stored.
  struct Factors {
    float own, before;
  };
  __device__ Factors end(int row, RowPartial part, float before, bool put_it) const {
    const int h = head(row), q = of.q_offset + query(row);
    const Where at = of.at(h);
    const auto of_head = user.head(at);
    const Ended ended = end_of_row<User>(user, of_head, user.row(of_head, at, q), at, of.q_offset, q, part);
    Factors out{ended.factor, 0};
    float lse = ended.lse;
    if constexpr (has_before<Tile>) {
      const Merged with = merged(lse, before);
      out = {ended.factor * with.own, with.before};
      lse = with.lse;
    }
    if (put_it) {
      put(args.lse, h, query(row), lse);
      if constexpr (Tile::max) put(args.max, h, query(row), ended.max);
    }
    return out;
  }
  /// lse_before of an existing row. To be read before any thread ends the row.
  __device__ float before(int row) const {
    if constexpr (has_before<Tile>)
      return exists(row) ? lse_before(args, of.b, head(row), of.queries.start + query(row)) : -infinity;
    else
      return 0;
  }
  /// Stores N neighbours of a row's O, scaled. A result whose factor is 0 may hold anything.
  template <int N>
  __device__ void put(int row, int column, const float (&sums)[N], Factors by) const {
    const int h = head(row), position = of.queries.start + query(row);
    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      x[i] = by.own == 0.0f ? 0.0f : sums[i] * by.own;
      if constexpr (has_before<Tile>)
        if (by.before != 0.0f) x[i] += by.before * o_before(args, of.b, h, position, column + i);
    }
    put_results<Tile>(args.o, of.b * args.o.batch + h * args.o.head + position * args.o.position, column, x);
  }
  __device__ void put(const Rows& to, int h, int query, float x) const {
    put_of_row(to, of.b, h, of.queries.start + query, x);
  }
};

/// A part in memory: the results of Tile::m rows, then their RowPartials. Sharer `nth` has two parts, for the tile that
/// its share begins in and the tile that it ends in, if other workers have keys of these tiles.
template <class Tile>
__device__ inline float* mla_part(const MlaArgs& args, int first, int nth, int rank) {
  const int slot = 2 * (first + nth) + (nth == 0);
  return args.parts + static_cast<long long>(slot * Tile::cluster + rank) * Tile::m * (Tile::dv + part_floats);
}
template <class Tile>
__device__ inline RowPartial* parts_in(float* slot) {
  return reinterpret_cast<RowPartial*>(slot + Tile::m * Tile::dv);
}

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
  static_assert(at.split_bytes == sizeof(SplitRange));
  static constexpr int used_rest = 2;

  static __device__ unsigned full(unsigned shared, int stage, int chunk) {
    return shared + at.stage_barriers + stage * at.of_stage + 8 * chunk;
  }
  static __device__ unsigned used(unsigned shared, int stage, int what) {
    return shared + at.stage_barriers + stage * at.of_stage + 8 * (at.chunks + what);
  }
  /// The chunks of a warpgroup's stage in the order in which they become free: those without values, then both
  /// halves.
  static __device__ constexpr int nth_chunk(int group, int nth) {
    constexpr int rest = at.chunks - at.v_chunks;
    if (nth < rest) return at.v_chunks + nth;
    const int of_values = nth - rest;
    return group == (Tile::issue_order == 3) ? of_values : (of_values + at.half_chunks) % at.v_chunks;
  }
  static __device__ constexpr int user_of(int chunk) {
    return chunk >= at.v_chunks ? used_rest : chunk / at.half_chunks;
  }
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
    static_assert(sizeof(MlaItem) <= Shared::at.item_bytes && Shared::at.items % alignof(MlaItem) == 0);
    return *static_cast<MlaItem*>(
        __cvta_shared_to_generic(shared + Shared::at.items + (nth & 1) * Shared::at.item_bytes));
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

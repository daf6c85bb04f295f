// codegen/cuda/mla_sm90/rows.cuh — tiles of queries in MLA: their rows, their ends, parts of them in memory
#pragma once

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

}  // namespace attune

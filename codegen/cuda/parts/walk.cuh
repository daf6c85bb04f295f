// codegen/cuda/parts/walk.cuh — which tiles: the sequence and heads of a tile of queries, the tiles of keys it visits,
// and in which order tiles follow one another
#pragma once

#include "codegen/cuda/parts/entry.cuh"

namespace attune {

/// In decode, Tile::heads query heads of a key head share a tile: row r belongs to query r / heads
/// and to head r % heads of these.
template <class Tile>
constexpr int queries_of = Tile::m / Tile::heads;
/// The number of tiles for this many queries.
template <class Tile>
__device__ inline int q_tiles_of(int length) {
  return (length + queries_of<Tile> - 1) / queries_of<Tile>;
}
/// `count` query heads whose rows share tiles; the last set of a key head may have fewer than Tile::heads.
struct Heads {
  int first, count;
};
template <class Tile>
__device__ inline int sets_of_group(const ForwardArgs& args) {
  return (args.group + Tile::heads - 1) / Tile::heads;
}
/// The number of such sets in a batch entry.
template <class Tile>
__device__ inline int sets_of(const ForwardArgs& args) {
  if constexpr (Tile::heads == 1) return args.q_heads;
  return args.q_heads / args.group * sets_of_group<Tile>(args);
}
template <class Tile>
__device__ inline Heads heads_of(const ForwardArgs& args, int set) {
  if constexpr (Tile::heads == 1) return {set, 1};
  const int of_group = sets_of_group<Tile>(args), before = set % of_group * Tile::heads;
  return {set / of_group * args.group + before, min(args.group - before, Tile::heads)};
}

/// Tiles in the order in which they are visited: `first` partial ones, `full` full ones, then partial ones.
struct Walk {
  int count, first, full;
  int last;         ///< the tile visited first; with bands, tiles fall from it
  const int* list;  ///< the tiles if they come as lists, else null

  __device__ int tile(int i) const { return list ? list[i] : last - i; }
  __device__ bool is_full(int i) const { return i >= first && i < first + full; }
};

/// The nth of `parts` parts of a walk, which differ by at most one tile.
__device__ inline Walk part_of(const Walk& all, int nth, int parts) {
  const int begin = all.count * nth / parts, count = all.count * (nth + 1) / parts - begin;
  const auto inside = [&](int i) { return min(max(i - begin, 0), count); };
  const int first = inside(all.first);
  return {count, first, inside(all.first + all.full) - first, all.tile(begin), all.list ? all.list + begin : nullptr};
}

/// Bands of positions as bands of keys; key 0 has position `offset`.
__device__ inline Bands counted_from(int offset, Bands bands) {
  if (offset == 0) return bands;
  for (int* end : {&bands.begin, &bands.end, &bands.full_begin, &bands.full_end}) *end = max(*end, offset) - offset;
  return bands;
}

__device__ inline Walk walk_bands(Bands bands, int kv_len, int n) {
  const int begin = max(bands.begin, 0) / n, end = (min(bands.end, kv_len) + n - 1) / n;
  Walk walk{max(end - begin, 0), 0, 0, end - 1, nullptr};
  if (walk.count == 0) return walk;
  // A tile that reaches past the last key is partial.
  const int full_end = max(min(bands.full_end, kv_len), 0) / n;
  const int full_begin = max((max(bands.full_begin, 0) + n - 1) / n, begin);
  walk.full = max(full_end - full_begin, 0);
  walk.first = walk.full ? end - full_end : walk.count;
  return walk;
}

__device__ inline Walk walk_list(const Entries& of, int b, int h, int q_tiles, int q_tile) {
  const int row = ((of.tile_batches == 1 ? 0 : b) * of.tile_heads + (of.tile_heads == 1 ? 0 : h)) * q_tiles + q_tile;
  const int* list = of.tiles + static_cast<long long>(row) * of.tile_stride;
  return {list[0] + list[1], list[0], list[1], list[2], list + 2};
}

/// Queries of an entry, and the tile that has them. Kernels whose lists have one row for all queries name tile 0 of 1.
struct QueryRows {
  int first, end, tile, tiles;
};
/// The tiles of keys that these queries of a head visit; `head`: user.head(at).
template <class Tile, class User>
__device__ inline Walk walk_of(const Entries& of, const User& user, const Entry& entry, Where at,
                               const typename User::Head& head, QueryRows rows) {
  if constexpr (User::traits.listed)
    return walk_list(of, at.b, at.h, rows.tiles, rows.tile);
  else
    return walk_bands(
        counted_from(entry.kv_offset, user.bands(head, at, entry.query(rows.first), entry.query(rows.end))),
        entry.keys.length, Tile::n);
}

/// The tiles of `m` queries that see keys [first, end) of an entry.
template <int m, class User>
__device__ inline Walk walk_of_keys(const User& user, const Entry& entry, Where at, const typename User::Head& head,
                                    int first, int end) {
  Bands bands = user.q_bands(head, at, entry.query(0), entry.query(entry.queries.length), entry.key(first),
                             entry.key(end));
  for (int* side : {&bands.begin, &bands.end, &bands.full_begin, &bands.full_end}) *side -= entry.q_offset;
  return walk_bands(bands, entry.queries.length, m);
}

// ---- sections: operands of their sets stay in the L2 cache together -------------------------------------------------

/// `sets` sets of `of_set` tiles each. A section has `section` sets, the last section the remaining ones, or
/// `last_sets`. Within a section the nth tiles of all sets follow one another. Index: a type that can count all tiles
/// of a call.
template <class Index>
struct Sections {
  int sets, section, of_set, last_sets = 0;

  struct At {
    int set, nth;
    int section;  ///< number of the section; unknown for a last one of last_sets
    bool last;    ///< true for the last section
  };
  __device__ At at(Index index) const {
    const int others = sets - last_sets;
    if (const Index rest = index - static_cast<Index>(of_set) * others; last_sets > 0 && rest >= 0)
      return {others + static_cast<int>(rest % last_sets), static_cast<int>(rest / last_sets), -1, true};
    const Index of_section = static_cast<Index>(of_set) * section;
    const int nth_section = static_cast<int>(index / of_section), before = nth_section * section,
              here = min(section, others - before), within = static_cast<int>(index % of_section);
    return {before + within % here, within / here, nth_section, before + here == sets};
  }
};

// ---- places of packed sequences ----------------------------------------------------------------------------------

/// The first place of sequence b, whose tiles are `positions` long; see BackwardArgs.
template <int positions>
__device__ inline int place_of(const int* starts, int b) {
  return starts[b] / positions + b;
}
/// The sequence of a place.
template <int positions>
__device__ inline int sequence_at(const int* starts, int batch, int place) {
  int b = 0;
  for (int end = batch; end - b > 1;) {
    const int middle = (b + end) / 2;
    (place_of<positions>(starts, middle) <= place ? b : end) = middle;
  }
  return b;
}

}  // namespace attune

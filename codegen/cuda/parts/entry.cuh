// codegen/cuda/parts/entry.cuh — where a batch entry's queries and keys lie, at which positions, in which pages; and
// which tiles of keys a tile of queries visits, in which order
#pragma once

#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/mod.cuh"
#include "codegen/cuda/contract/types.cuh"

namespace attune {

// ---- of a Tile ------------------------------------------------------------------------------------------------------

/// True if results of another call are merged in.
template <class Tile>
constexpr bool has_before = requires {
  requires Tile::before;
};
/// True if the call has a fixed split size.
template <class Tile>
constexpr bool has_fixed_split = requires {
  requires Tile::fixed_split;
};

/// True if a tile of keys holds all keys of a sequence. Its dQ is then complete: consumers store it, and nothing is
/// added up in memory. Every tile of queries is visited, so that each gets its dQ.
template <class Tile>
constexpr bool is_alone = requires {
  requires Tile::alone != 0;
};

/// True if several blocks share the keys of a tile of queries.
template <class Tile>
constexpr bool is_in_parts = requires {
  requires Tile::in_parts != 0;
};

/// True if entries have their own lengths and positions.
template <class Tile>
constexpr bool is_per_entry = requires {
  requires Tile::per_entry != 0;
};
/// True if the KV cache is paged.
template <class Tile>
constexpr bool is_paged = requires {
  requires Tile::paged != 0;
};

/// The argument struct of a kernel with such a Tile.
template <class Tile, class Args>
using ArgsOf =
    Either<is_in_parts<Tile>, InParts<Args>, Either<has_before<Tile> || has_fixed_split<Tile>, Further<Args>, Args>>;
/// The same struct, in a function that was given only Args.
template <class Args>
__device__ inline const Further<Args>& further(const Args& args) {
  return static_cast<const Further<Args>&>(args);
}
/// Of a call whose Tile is_in_parts.
template <class Args>
__device__ inline const KeyParts& key_parts(const Args& args) {
  return static_cast<const InParts<Args>&>(args).parts;
}

// ---- of an entry ----------------------------------------------------------------------------------------------------

/// The rows of a batch entry in memory: all of them, or those of a sequence within packed tensors.
struct Range {
  int start, length;
};

/// All that a kernel reads of an entry, once for each tile. Rows count from the entry's first query or key; positions
/// are what expressions see.
struct Entry {
  Range queries, keys;
  int q_offset, kv_offset;

  __device__ int query(int row) const { return q_offset + row; }
  __device__ int key(int row) const { return kv_offset + row; }
  __device__ Where at(int b, int head) const { return {b, head, queries.length, key(keys.length)}; }
};

/// The number of an entry's keys, at most `most`.
__device__ inline int kv_length(const Entries& of, int b, int most) {
  return of.kv_lens.at ? max(min(of.kv_lens.at[b * of.kv_lens.stride], most), 0) : most;
}

/// Starts and lengths on the device are not checked, but no sequence gets more rows than the call's lengths allow.
/// `packed`, `own`: calls may be packed; entries may have their own lengths and positions.
template <bool packed, bool own>
__device__ inline Entry entry_of(const Entries& of, int b) {
  const auto range = [&](const int* starts, int length) -> Range {
    if constexpr (packed)
      if (starts) return {starts[b], min(starts[b + 1] - starts[b], length)};
    return {0, length};
  };
  Entry out{range(of.q_starts, of.q_len), range(of.kv_starts, of.kv_len), of.q_offset, 0};
  if constexpr (own) {
    out.keys.length = kv_length(of, b, out.keys.length);
    if (of.q_offsets.at) out.q_offset = of.q_offsets.at[b * of.q_offsets.stride];
    out.kv_offset = of.kv_offset;
  }
  return out;
}
template <class Tile, bool own = is_per_entry<Tile>>
__device__ inline Entry entry_of(const Entries& of, int b) {
  return entry_of<is_packed<Tile>, own>(of, b);
}

/// The pages of an entry, as the page table numbers them.
struct Pages {
  const int* numbers;
  long long nth;    ///< ints from a number to the next
  int rows, count;  ///< of a page; of the pool

  __device__ Pages(const PageTable& table, int b)
      : numbers(table.at + b * table.entry), nth(table.nth), rows(table.rows), count(table.count) {}
  /// The number of the page that a row lies in, which may not exist; and the row within it.
  struct At {
    int page, row;
  };
  __device__ At at(int row) const {
    const int before = row / rows;
    return {numbers[before * nth], row - before * rows};
  }
  __device__ bool exists(int page) const { return page >= 0 && page < count; }
};

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

/// The first tile of `n` keys that bands reach, and the first one after them. walk_bands() does not call these
/// functions, because its machine code was another one with them.
__device__ inline int first_tile_of(const Bands& bands, int n) { return max(bands.begin, 0) / n; }
__device__ inline int end_tile_of(const Bands& bands, int kv_len, int n) {
  return (min(bands.end, kv_len) + n - 1) / n;
}

/// What a table of visits says about two tiles: a Visit, or 0. Keys are in tiles of `n`.
__device__ inline unsigned visit_of(const Entries& of, Where at, int n, int q_tile, int kv_tile) {
  const int head = (of.tile_batches == 1 ? 0 : at.b) * of.tile_heads + (of.tile_heads == 1 ? 0 : at.h),
            row = head * ((of.kv_len + n - 1) / n) + kv_tile;
  return static_cast<unsigned>(__ldg(of.tiles + static_cast<long long>(row) * of.tile_stride + q_tile));
}

/// True if a kernel for a whole backward visits these tiles of an entry that has both.
template <class Tile, class User>
__device__ inline bool are_visited(const Entries& of, const User& user, const Entry& entry, Where at,
                                   const typename User::Head& head, int q_tile, int kv_tile) {
  if constexpr (is_alone<Tile>) return true;
  if constexpr (User::traits.listed) return visit_of(of, at, Tile::n, q_tile, kv_tile) != 0;
  const int begin = q_tile * Tile::m, end = min(begin + Tile::m, entry.queries.length);
  const Bands bands = user.bands(head, at, entry.query(begin), entry.query(end));
  return kv_tile >= first_tile_of(bands, Tile::n) && kv_tile < end_tile_of(bands, at.kv_len, Tile::n);
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

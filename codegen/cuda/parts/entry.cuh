// codegen/cuda/parts/entry.cuh — what a call hands to a kernel: the struct of its arguments, and of a batch entry where
// its queries and keys lie, at which positions, in which pages
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

}  // namespace attune

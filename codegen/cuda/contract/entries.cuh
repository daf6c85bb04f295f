// codegen/cuda/contract/entries.cuh — whose queries and keys a call has, and where they lie; the host fills the same
// structs, so only C++ is used here
#pragma once

namespace attune {

/// One number per batch entry; null: all entries have the call's number.
struct Numbers {
  const int* at;
  long long stride;  ///< in ints
};

/// A paged KV cache with pages of `rows` rows: rows n * rows and on of an entry are those of page at[b * entry + n *
/// nth], or zeros if that number is not a page below `count`. In Strided, a batch entry of k and v is then a page.
struct PageTable {
  const int* at;
  long long entry, nth;
  int rows, count;
};

/// The batch entries of a call; the arguments of every kernel of attention begin with it. parts/entry.cuh says what a
/// kernel reads of it.
struct Entries {
  int batch, group;   ///< group: query heads of a key head
  int q_len, kv_len;  ///< packed: of the longest sequence
  int q_offset;       ///< the position of the first query, as expressions see it
  int kv_offset;      ///< the same of the first key; 0 unless entries have their own lengths, positions or pages
  int kv_shared;      ///< 1 if all batch entries share one entry of k and v
  int tile_stride;    ///< ints a row of tiles, four more than the longest list, because lists are read ahead
  int tile_batches, tile_heads;  ///< 1 if the lists do not vary with them
  const int* q_starts;           ///< packed: batch + 1 starts of each, else null
  const int* kv_starts;
  const int* tiles;   ///< lists of a listed Mod, see cover.cuh: per row of tiles, how many partial and full,
                      ///< then which
  Numbers kv_lens;    ///< instead of kv_len, which is then an upper bound
  Numbers q_offsets;  ///< instead of q_offset
  PageTable page_table;
};

}  // namespace attune

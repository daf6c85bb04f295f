// codegen/cuda/contract/args.cuh — what a launch hands to a kernel, and what is known about its Mod; the host fills the
// same structs, so only C++ is used here
#pragma once

namespace attune {

// ---- blocks of Hopper's kernels -------------------------------------------------------------------------------------

/// Four warps, which issue products together.
constexpr int warpgroup_threads = 128;

/// A block has one warpgroup that loads and others that compute. `loading`, `computing`: registers per thread.
struct Block90 {
  int consumers = 2;  ///< warpgroups that compute
  int loading = 40, computing = 232;
  int helping = 0;  ///< of a further warpgroup, which draws random numbers or sums diagonals; 0: there is none
  int threads = (1 + consumers + (helping > 0)) * warpgroup_threads;
};

/// Rows of tiles for Hopper lie in shared memory in chunks: the bytes of a row of a chunk, which TMA swizzles.
constexpr int chunk_bytes = 128;

/// The alignment of a chunk, in bytes. If a kernel aligns its memory itself, a launch requests this much more.
constexpr int chunk_alignment = 1024;

// ---- batch entries --------------------------------------------------------------------------------------------------

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

// ---- arguments ------------------------------------------------------------------------------------------------------

/// A CUtensorMap, opaque.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};
/// The first element of a box of a tensor [batch, key head, position, query head of the key head, d].
struct HeadsBox {
  int d, head, position, kv_head, batch;
};

/// A tensor of a call, strides in elements: [batch, head, position, d]; packed tensors have no batch (stride 0).
struct Strided {
  void* data;
  long long batch, head, position;
  long long element = 1;
};

/// Rows of lse, max or tensors of that shape: [batch, head, position]. Null: not asked for, or not given.
struct Rows {
  float* data;
  long long batch, head, position;
};

struct ForwardArgs : Entries {
  TensorMap q_map, k_map, v_map, o_map;  ///< for kernels that use TMA
  Strided q, k, v, o;
  Rows lse, max;
  int q_heads, d, dv;
  int order_count;   ///< places for tiles of `order`; without an order, q's positions / queries of a tile + batch
  const int* order;  ///< packed, persistent kernels: the sequence and tile of each tile of queries of a set; null where
                     ///< the host does not know the starts
  int section;       ///< sets of heads (entry.cuh) whose keys and values stay in the cache together
  unsigned* next;    ///< the next tile of a dynamic schedule, 0 before the launch; null: one block per tile
};

/// f32 in DecodeArgs::parts per row, besides its results: the row's sum, and the exponent that this is relative to.
constexpr int part_floats = 4;

/// For kernels whose blocks share the keys of a tile of queries.
struct DecodeArgs : Entries {
  Strided q, k, v, o;
  Rows lse, max;
  int sets, sets_of_group;  ///< sets of heads that share a tile: all, and per key head
  float* parts;        ///< two per block: rows of results of all queries and heads of a tile, then their RowPartials
  unsigned* arrivals;  ///< per block, how many blocks that share its last tile have arrived: 0 before the launch
  int paired;          ///< 1 if each tile is shared by a cluster of two blocks, which count no arrivals
};

/// A tile of queries whose keys several blocks share: its parts are those of `count` blocks from `first` on. A count of
/// 0 means none.
struct CutTile {
  int tile, first, count;
};

/// For kernels whose blocks share the keys of a tile and load keys by TMA. `arrivals` is null: a later kernel adds up
/// the parts of the tiles that `cut` lists, one per block or cluster.
struct MlaArgs : DecodeArgs {
  TensorMap q_map, k_map;
  CutTile* cut;
  int cuts;  ///< entries of `cut`, at most combine_mla_threads
};

/// Threads of a block of combine_mla_sm90.cuh, and its blocks per block of the previous kernel.
constexpr int combine_mla_threads = 256, combine_mla_blocks = 4;

/// The type of elements, for kernels that take any of several types. f64, e4m3: only append.cuh.
enum class Stored : int { f32, f16, bf16, f64, e4m3 };

/// A gradient, of any type. Null: not asked for.
struct Gradient {
  Strided to;
  Stored type;
};

/// Threads of a block of rows.cuh, and rows per group of threads that share a row.
constexpr int rows_threads = 256, rows_each = 4;
/// The threads that share a row of `width`: half a warp, or a quarter if each then has one access of 16 bytes.
constexpr int rows_lanes(int width) { return width <= 64 && width % 8 == 0 ? 8 : 16; }
constexpr int rows_of_block(int width) { return rows_threads / rows_lanes(width) * rows_each; }

/// Threads of a block of end_queries_sm90, and the tiles of queries that it looks at, one per lane, where dQ is
/// complete.
constexpr int end_threads = 256, cleared_tiles = 32;
/// Threads of a block of repair_sm80.cuh.
constexpr int repair_threads = 128;

/// One struct for all kernels of a backward: each kernel reads what it needs. `tiles` has, for `keys` kernels, a row of
/// lists for each tile of keys, for kernels that do all a table of visits (Visit).
struct BackwardArgs : Entries {
  TensorMap q_map, k_map, v_map, grad_o_map;  ///< for kernels that use TMA
  Strided q, k, v, o, grad_o;
  Rows lse, grad_lse;  ///< lse: of the whole row, as the forward gives it
  Rows delta;          ///< the sum of p dp of each row, less its grad_lse: the softmax subtracts it from every dp
  Gradient grad_q, grad_k, grad_v;
  float scale;                   ///< multiplies q . k
  int q_heads, kv_heads, d, dv;  ///< kv_heads: q_heads / group, divided once
  int section;                   ///< sets of heads (entry.cuh) whose operands stay in the cache together
  unsigned* visited;             ///< if tiles is a table: the number of visits in it
  int q_places, kv_places;       ///< for kernels that do all: tiles of a head. Packed: sequence b has the places from
                                 ///< starts[b] / positions of a tile + b on, of which it may leave one free
  float* sums;  ///< for kernels that add dq up in memory: f32, laid out as the kernel likes, a tile of queries after
                ///< another: [batch, head, place], packed without batch
  unsigned* added;       ///< per such tile, how many tiles of keys were added to it: 0 before the launch
  unsigned complete_at;  ///< `added` of a complete tile, if it is the same for all tiles of queries; else 0
  unsigned* next;        ///< items of a dynamic schedule taken beyond one per block: 0 before the launch
  unsigned* non_finite;  ///< set to 1 where a result is not finite though pairs were masked out: a masked-out pair may
                         ///< have brought it in
};

/// The arguments of calls that are merged with results of another call, or that have a fixed split size. Kernels of
/// other calls get only `Args`.
template <class Args>
struct Further : Args {
  // Aligned like Args, so that all compilers place it after their padding.
  alignas(Args) Strided o_before;  ///< results over other keys, for every row of the call; may be o
  Rows lse_before;                 ///< may be lse
  Stored o_before_type;
  // For kernels whose blocks share the keys of a tile: each split of a tile, not each block, then has a part in
  // DecodeArgs::parts, and each tile an arrival counter.
  int split_steps;  ///< steps of a warp's keys per split; all warps have as many
  int splits;       ///< splits that a tile may have
};

/// Split-KV: the partial results of each row, which combine_parts.cuh merges. Rows
/// are those of [batch, query head, position], packed without batch.
struct KeyParts {
  int count;      ///< parts of a tile's keys, at most most_key_parts: each part is some of its tiles of keys
  int positions;  ///< q_len; packed: of all sequences
  long long rows;
  float* o;      ///< [part, row, dv]: sums of P V
  float* sums;   ///< [part, row]: the sum of powers, and the exponent that both sums are relative to
  float* rests;  ///< [row]: the mod's rest(), and its sink() or -inf
  Stored o_type;
};
constexpr int most_key_parts = 32;
/// The arguments of such a forward.
template <class Args>
struct InParts : Further<Args> {
  alignas(Args) KeyParts parts;
};

/// Threads of the block of clear.cuh.
constexpr int clear_threads = 256;

/// The arguments of clear.cuh.
struct ClearArgs {
  unsigned* first;
  int count;
};

/// Threads of a block of gather_pages.cuh, and its keys.
constexpr int gather_threads = 256, gather_rows = 64;

/// The arguments of gather_pages.cuh.
struct GatherArgs : Entries {
  Strided k, v;          ///< pools of pages
  void *k_to, *v_to;     ///< [batch, key head, position, column], without gaps
  int element;           ///< bytes of one
  int k_units, v_units;  ///< of 16 bytes, in a row
};

/// Threads of a block of transpose_v_sm90.cuh.
constexpr int transpose_threads = 128;
/// Rows that it stores at once of values wider than 128.
constexpr int transposed_box_rows = 32;

/// The arguments of transpose_v_sm90.cuh.
struct TransposeArgs {
  TensorMap from, to;  ///< boxes of v, a tile of keys each; of transposed tiles, one each or transposed_box_rows
  int heads, tiles;    ///< tiles: of keys, in `to`; packed: places
  int batch;           ///< packed: sequences
  const int* starts;   ///< packed: of keys
};

/// Threads of a block of split_keys_sm90.cuh.
constexpr int split_threads = 256;

/// The arguments of split_keys_sm90.cuh.
struct SplitArgs : Entries {
  Strided k, v;
  float *k_to, *v_to;
  int heads, tiles;  ///< tiles: of keys of a head; packed: places
  int d, dv;
};

/// The rows of a warp of split_rows_sm90.cuh; it has split_threads threads a block.
constexpr int split_rows_each = 8;
/// Factors of a head are padded to a multiple of this.
constexpr int split_lines = 64;

/// A tensor whose rows are written as numbers of f16: [batch, head, position, columns], without gaps.
struct SplitRows {
  Strided from;
  unsigned short* to;
  float* factors;  ///< [batch, head, line]: a power of two for each row, 1 for lines past the last row
  int batch, heads, length, width;
  int lines;  ///< length, rounded up to split_lines
};
/// The arguments of split_rows_sm90.cuh.
struct SplitRowsArgs {
  SplitRows q, k, v, grad_o;
  unsigned* non_finite;  ///< set to 1 if an element is not finite, or too large for f16
};

/// Threads of a block of append.cuh, and threads that share a row of a head.
constexpr int append_threads = 256, append_lanes = 16;

/// New rows of k or of v, and the cache that they are written to.
struct Appended {
  Strided from, into;
  Stored from_type, into_type;
  int width;
  int copy_bytes;  ///< bytes copied at a time; 0: element by element, through f64
  double scale;    ///< elements are divided by this before they are stored
};

/// The place of each new row: slot s is row s % rows of page s / rows. Null: the cache has entries.
struct Slots {
  const void* at;
  long long stride;  ///< in integers
  int wide;          ///< 1: i64, 0: i32
  long long rows, pages;
};

/// The arguments of append.cuh.
struct AppendArgs {
  Appended k, v;
  int batch, heads;
  int new_rows;          ///< of each entry; packed: unused
  int capacity;          ///< keys that an entry can hold
  const int* starts;     ///< packed: batch + 1 starts of the new rows, else null
  Numbers kv_lens;       ///< keys of each entry, including the new ones
  PageTable page_table;  ///< null: the cache is not paged
  Slots slots;           ///< if given, it alone says where rows go
};

/// Rows of a block of copy_rows.cuh, add_parts.cuh and combine_ranks.cuh.
constexpr int rows_of_copy = 8;

/// Elements of two tensors of the same shape. Missing dimensions come first with extent 1; a row is the last dimension.
struct RowsArgs {
  static constexpr int most_rank = 4;
  const void* from;
  void* to;
  int bytes;  ///< bytes copied at once
  long long extent[most_rank], from_stride[most_rank], to_stride[most_rank];
};
/// Parts of a tensor, `part_stride` elements apart, which are added up.
struct AddArgs : RowsArgs {
  Stored from_type, type;  ///< from_type: f32 or f64
  int parts;
  long long part_stride;
  int adds;  ///< 1 if the sum is added to what `to` holds
};
/// Results over the keys of each part, one part after the other: [part, batch, head, row], o with dv columns.
struct CombineArgs {
  const float *o_parts, *lse_parts, *max_parts;  ///< max_parts: null if max is null
  Strided o;
  Stored o_type;
  Rows lse, max;
  int parts, batch, heads, rows, dv;
};

/// Threads of a block of store_sums.cuh.
constexpr int sums_threads = 128;
/// 64-bit words of an exact sum: twelve of digits, one of flags.
constexpr int exact_finite_words = 12, exact_words = 13;
/// Threads of a block of spread_diagonals.cuh.
constexpr int diagonals_threads = 128;

/// Threads of a block of sum_sinks.cuh, and its rows.
constexpr int sum_sinks_threads = 128, sum_sinks_rows = 1024;

/// Threads of a block of sum_ds.cuh, and its blocks per multiprocessor: several times as many as run at once, because
/// parts without stored dS take less time.
constexpr int sum_ds_threads = 256, sum_ds_blocks = 16;

/// Where a backward stores dS: the last but one member of such a kernel's `User`. A launch may be for some of the keys
/// of each batch entry or sequence.
struct StoredDs {
  TensorMap map;          ///< of `ds`, in boxes of a tile of queries by 64 keys
  Strided ds;             ///< of q's type: [batch, head, query, key], keys counted from first_tile on. Packed: [1, 1,
                          ///< query, key], where tiles of queries have the places of their sums of dq
  int first_tile, tiles;  ///< of keys
};

/// A gradient that sum_ds.cuh makes of stored dS. An array of these is the last member of `User`.
struct SumOfDs {
  int is_ds;    ///< 1: dS is stored straight into it
  Gradient to;  ///< [batch, head, position of the query, key]; 0 strides where it has no such dimension
  struct Groups {
    int count, size;  ///< `count` groups of `size` neighbours, which share an element
    int before;       ///< neighbours before the call's first one, if the call is a part of another
  } batch, heads;
  int rows, columns;  ///< of `to`
};

/// The arguments of store_sums.cuh: one sum per element of a tensor, along the last dimension first. Missing dimensions
/// come first with extent 1.
struct SumsArgs {
  static constexpr int most_rank = 4;
  const unsigned long long* sums;
  void* to;
  Stored type;
  long long count;
  long long extent[most_rank], stride[most_rank];  ///< in elements
};

// ---- lists of tiles -------------------------------------------------------------------------------------------------

/// Threads of a block of cover.cuh. A warp has few tiles, because a verdict takes a microsecond, mostly the latency of
/// its reads.
constexpr int cover_threads = 1024;

/// What is written of a cover: for each tile of queries the tiles of keys to visit; for each tile of keys the tiles of
/// queries; or a table of both, one row per tile of keys, with a Visit per tile of queries.
enum class CoverForm { of_queries, of_keys, visits };

/// One word of the table, for two tiles; 0 if there is nothing to visit. `below`, `above`: the number of tiles of keys
/// before and after this one that the queries visit too. The number after it is stored plus 1, so no visit is 0.
struct Visit {
  /// In the last bits. part: some pairs are masked out; whole: no pair of an existing key is; first_half, second_half:
  /// pairs of the other half of the keys are all masked out.
  enum Kept : unsigned { part, whole, first_half, second_half };
  static constexpr unsigned kept = 3;
  static constexpr int below_at = 2, above_at = 17;  ///< bits from these on
  static constexpr unsigned most_tiles = (1 << (above_at - below_at)) - 1;
};

/// The grid is (tiles of queries, or of keys for lists of queries; heads; batches). Heads and batches are 1 if the
/// lists do not vary with them.
///
/// Entries::tile_stride, ints a row: of lists at least 2 + 2 * tiles along the other axis, which the kernel also uses
/// as scratch; of a table the tiles of queries of the longest sequence.
struct CoverArgs : Entries {
  int* into;          ///< the lists
  int m, n;           ///< queries and keys of a tile
  unsigned* next;     ///< set to 0, for the next kernel; null if that kernel has no counter
  unsigned* visited;  ///< the number of visits in a table is added to it; may be null
};

// ---- a Mod, when its source is written: kernels are chosen by this, and compiled with it ----------------------------

/// Where the part of a score that does not depend on s is largest among the pairs of a row and a tile of keys.
enum class Peak : unsigned char {
  unknown,
  ends,      ///< at the first or the last key
  diagonal,  ///< there, or where kv is q
  columns,   ///< anywhere; the part is the same for all rows
};

/// What is known about a Mod when its source is written.
struct Traits {
  bool scaled = false;     ///< exponent(s) is factor() * s, and factor() is positive: one multiply-add makes the power
  bool bounded = false;    ///< exponent() stays below `most`, closely enough that no running maximum is needed
  bool masked = false;     ///< some pairs are masked out, by the next three
  bool has_first = false;  ///< keys before first()
  bool has_last = false;   ///< keys after last()
  bool has_keep = false;   ///< pairs for which keep() is false
  bool keeps_by_fields = false;  ///< keep() reads neither q nor kv, and a Row with fields has of_lane() and is()
  int keep_block = 0;  ///< keep() is the same for all keys of an aligned block of this size, 16 to 128; 0: there is no
                       ///< such block
  bool has_prob = false;  ///< prob() changes p
  /// prob(c p) is c^degree prob(p) for every c > 0, so prob() may act before the normalisation; 1: prob() is a multiple
  /// of p; 0: there is no such number, or it is too large.
  float degree = 1;
  bool keeps_zero = true;     ///< prob(0) is 0 for any values of the captured tensors
  bool drops = false;         ///< prob() is kept(drop_seed(), drop_share(), ...) ? p * drop_factor() : 0
  bool has_sink = false;      ///< sink() joins the denominator
  bool skips = false;         ///< some tiles of keys are not visited: by the mask, or by scores of -inf
  bool listed = false;        ///< tiles to visit come as lists; bands() is not used
  float most = 0;             ///< see bounded
  Peak peak = Peak::unknown;  ///< where term() is largest. If it is not there, a call takes longer
  // Only for the choice of a kernel; sources do not contain these.
  bool delta_of_o = true;  ///< of a backward: a row's delta is the product of dO and O
  bool has_slope = false;  ///< of a backward: the derivative of scores is not 1 everywhere
  bool draws = false;      ///< prob() draws random numbers pair by pair
  bool has_terms = false;  ///< gradients of captured tensors are asked for
  // ... of which a kernel for a whole backward sums some so: see sums.cuh.
  bool sums_items = false;      ///< by head or by key, in the warpgroups' registers
  bool items_ask_s = false;     ///< ... from more than P, dP and delta of a pair
  bool sums_diagonals = false;  ///< along diagonals, q - kv
  bool stores_ds = false;       ///< as stored dS: see codegen/facts/ds_term.h
  int copied_reads = 0;         ///< reads that a kernel can copy tile by tile: see copied_reads()
  bool copies_f32 = false;      ///< ... which is one of f32, in a backward
  int distant_reads = 0;        ///< reads in the part that a kernel can compute once a distance: see distant_part()
  int column_words = 0;         ///< words that scores read of a column, some of them from captured tensors
  bool has_tanh = false;        ///< there is a tanh that a kernel can compute itself: see only_tanh()
  bool shares_tiles = false;    ///< heads can share tiles: neither the mask nor column reads vary with the head
};

}  // namespace attune

// codegen/cuda/backward_sm90/tile_scheduler.cuh — the tile scheduler of backward_sm90.cuh: the order of items (tiles of
// keys), their steps, and where steps lie in shared memory
#pragma once

#include "codegen/cuda/backward_sm90/layout.cuh"
#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// True if a warp copies what pairs read of a captured tensor into the memory that their dS will have; elements of f32
/// and those of a second tensor need as much memory again. Warps read these elements before they write dS.
template <class Tile, class User>
constexpr bool copies_for_backward = copies_reads<Tile, User>&& User::gradient.by_diagonal == 0;

/// A tile of queries that an item of keys visits. An item that visits none has one empty step.
struct Step {
  static constexpr int first = 1, last = 2;  ///< of the item
  static constexpr int whole = 4;            ///< no pair is masked out
  static constexpr int empty = 8;            ///< the item has no queries
  static constexpr int stop = 16;            ///< there are no more items
  static constexpr int falls = 32;           ///< the item visits queries from the last on; set if diagonals are summed
  static constexpr int completes = 64;       ///< no later item visits the queries; set if dQ is completed
  static constexpr int rests = 128;  ///< the queries see no keys of the first warpgroup; twice this, of the second
  static constexpr int nothing = -1, no_more = -2;  ///< instead of sums
  int what, queries = 0, b = 0, h = 0, keys = 0, kv_head = 0;
  int sums = nothing;    ///< the tile among all heads' queries; if there is none, what the adding warp does
  int added_before = 0;  ///< tiles of keys to be added to these queries before this one
  // Of the sequence, or of the whole tensor.
  int q_start = 0, q_len = 0, kv_start = 0, kv_len = 0;
};
constexpr int step_words = sizeof(Step) / 4;
/// Steps outlive their stages: warpgroups read where results belong after they release the last stage, and the adding
/// warp lags. It is less than six steps behind the producer warp, because stages of queries and of sums lie between
/// them.
constexpr int steps_kept = 8;

/// True if the item that visits queries last loads their sums, adds its own dQ and stores the result.
template <class Tile>
constexpr bool completes_dq = requires {
  requires Tile::completes != 0;
};

/// True if a warpgroup whose keys a tile of queries does not see skips all products of the step but dQ. Not for tiles
/// of 128 queries, where it lost 3 % in packed calls, not where items have many steps, and not for masks such as a
/// prefix, listed and not by fields alone, where it lost 2 %.
template <class Tile, class User>
constexpr bool has_rests = completes_dq<Tile>&& Tile::order == 3 && Tile::m == 64 &&
                           (!User::traits.listed || User::traits.keeps_by_fields);

/// The order in which an item visits its heads' queries. 0: head after head. 1: there and back, but in a section
/// without a partner as 0. 2: where items have few steps, all heads together, tile by tile; elsewhere as 0.
template <class Tile>
constexpr int path_of = [] {
  if constexpr (requires { Tile::path; })
    return Tile::path;
  else
    return 0;
}();

/// The heads of a group that an item visits together, in one of its passes.
///
/// Under a causal mask an item has the queries of one more diagonal tile than the item of the keys after it, in each
/// head. If keys fall, it follows that item, and both begin together. If keys rise, that item follows it, and begins
/// later by the queries it has less, because items of the section before ended in that order. Either way it meets a
/// tile of queries as many steps after the item before it as there are diagonal tiles that only one of both has visited
/// by then; that is how long dq has to pass from one to the other, and how long the tile has to stay in the L2 cache.
/// Two tiles of 64 queries are enough. So one pass visits `first_heads` of the heads, from the diagonal on if keys
/// fall, and the other pass the rest, towards the diagonal; the reverse if keys rise. Head after head, tiles of the nth
/// head would stay n times as long.
///
/// Items of few steps, of documents and packed sequences, begin in no such order. An item that has fewer queries than
/// the one before it waits for that one at each head. Together, they wait for it once.
template <class Tile>
struct HeadsVisited {
  static constexpr int first_heads = Tile::m / 64;
  int begin, end;
  bool falls;     ///< queries are visited from the last on
  int lanes = 1;  ///< of a tile of queries: heads, rounded up to a power of 2

  static __device__ int lanes_of(int heads) { return 1 << (32 - __clz(heads - 1)); }
  static __device__ int blocks(int heads) { return (heads + 31) / 32; }
  /// The number of passes. `in_turn`: one head at a time, for every path.
  static __device__ int passes(int heads, bool in_turn) {
    if (path_of<Tile> == 0 || in_turn) return heads;
    return path_of<Tile> == 1 ? 1 + blocks(max(heads - first_heads, 0)) : blocks(heads);
  }
  static __device__ HeadsVisited at(int nth, int heads, bool rising, bool in_turn) {
    if (path_of<Tile> == 0 || in_turn) return {nth, nth + 1, rising};
    int begin = 32 * nth;
    bool falls = rising;
    if constexpr (path_of<Tile> == 1) {
      const int back = rising ? passes(heads, false) - 1 - nth : nth;
      if (back == 0) return {0, min(first_heads, heads), rising, min(first_heads, heads)};
      begin = first_heads + 32 * (back - 1);
      falls = !rising;
    }
    const int end = min(begin + 32, heads);
    return {begin, end, falls, lanes_of(end - begin)};
  }
};

/// The shared memory of a block: addresses, from layout/.
template <class Tile>
struct Shared90Backward {
  using Element = typename Tile::Element;
  static constexpr int m = Tile::m, n = Tile::n;
  static constexpr bool wide = copied_units<Tile> == 2;
  static constexpr BackwardLayout90 at{.m = m,
                                       .n = n,
                                       .d = Tile::d,
                                       .dv = Tile::dv,
                                       .stages = Tile::stages,
                                       .element = ElementOf<Element>::bytes,
                                       .wide = wide};
  static_assert(at.step_words == step_words && at.steps_kept == steps_kept);
  static constexpr bool turned = at.turned;
  // Each of two warpgroups holds half of dq: half of the width, or half of 128 queries.
  static_assert((turned ? at.d_chunks == 2 : m * at.d_chunks == 128) && n == 128);
  static constexpr int sum_bytes = at.sum_bytes, sum_stages = at.sum_stages;

  unsigned base;

  __device__ SharedTile<n, Tile::d, Element> k() const { return {base + at.k}; }
  __device__ SharedTile<n, Tile::dv, Element> v() const { return {base + at.v}; }
  __device__ SharedTile<m, Tile::d, Element> q() const { return {base + at.q}; }
  __device__ SharedTile<m, Tile::dv, Element> grad_o() const { return {base + at.grad_o}; }
  /// A buffer has 64 keys of each warpgroup, queries by keys.
  __device__ SharedTile<m, n, Element> ds() const { return {base + at.ds}; }
  __device__ unsigned sums(int stage) const { return base + at.sums + stage * (sum_stages == 1 ? 0 : sum_bytes); }
  /// Of the rows of each stage.
  __device__ unsigned under() const { return base + at.under; }
  __device__ unsigned delta() const { return base + at.delta; }
  __device__ unsigned known(unsigned nth) const { return base + at.known + 8 * (nth % steps_kept); }
  __device__ StageBarriers full() const { return {base + at.full}; }
  __device__ StageBarriers sum_full() const { return {base + at.sum_full}; }
  __device__ StageBarriers ds_full() const { return {base + at.ds_full}; }
  /// If dQ is completed, a barrier per stage: its sums have been loaded. No diagonals are summed then.
  __device__ unsigned sums_loaded(int stage) const { return base + at.ds_full + 8 * stage; }
  __device__ unsigned k_full() const { return base + at.k_full; }
  __device__ unsigned v_full() const { return base + at.v_full; }
  __device__ unsigned keys_empty() const { return base + at.keys_empty; }
  __device__ unsigned results_empty() const { return base + at.results_empty; }
  __device__ unsigned copied_empty() const { return base + at.copied_empty; }
  static constexpr bool shares_copied = wide && at.copied_stages < Tile::stages;
  /// Where the wider half of what is copied lies.
  static __device__ int copied(int stage) { return at.copied + (shares_copied ? 0 : stage * at.ds_bytes); }
  __device__ unsigned in_eights() const { return base + at.in_eights; }
};

/// The address of a word of the nth step; words are the members of Step in order.
/// As a member of Shared90Backward this makes other machine code.
template <class Tile>
__device__ inline unsigned step_word(Shared90Backward<Tile> shared, unsigned nth, int word) {
  return shared.base + shared.at.steps + 4 * (nth % steps_kept * step_words + word);
}

// ---- items -------------------------------------------------------------------------------------------------------

/// The first tile of sums of sequence b in a head, whose queries begin at q_start.
template <class Tile>
__device__ inline int sums_of(const BackwardArgs& args, int b, int h, int q_start) {
  if constexpr (is_packed<Tile>) return h * args.q_places + q_start / Tile::m + b;
  return (b * args.q_heads + h) * args.q_places;
}

/// sequence_at() by a warp, with one or two reads after one another instead of one for each half.
template <int positions>
__device__ inline int sequence_by_warp(const int* starts, int batch, int place, int lane) {
  int b = 0;
  for (int left = batch; left > 1;) {
    const int step = (left + 31) / 32, at = lane * step;
    const bool before = at == 0 || (at < left && place_of<positions>(starts, b + at) <= place);
    const int nth = 31 - __clz(static_cast<int>(__ballot_sync(~0u, before)));
    left = min(step, left - nth * step);
    b += nth * step;
  }
  return b;
}

/// An item: a tile of keys of a key head, for all batch entries that share it. Items belong to their head's set. Sets
/// are scheduled in sections, whose nth items follow one another: a tile of queries takes some 2 us to pass from one
/// item of a set to the next, so items of a set must not start in faster succession. Sections alternate: in even ones
/// keys fall and queries rise, in odd ones the reverse. If a mask makes items longer towards one end, the items that
/// end late in one section are short in the next, and blocks visit the same queries one after another. A last section
/// without a partner starts with the longest items of a causal mask. A block waits only for items scheduled before its
/// own, so nothing deadlocks, whatever the number of blocks.
template <class Tile>
struct Items90Backward {
  const BackwardArgs& args;
  int per_section;  ///< sets

  struct Item {
    int b, kv_head;
    int keys;     ///< the tile; in a packed call the place, counted over all sequences
    bool rising;  ///< true if items of this set are scheduled with rising keys; queries are then visited falling
    bool unpaired = false;  ///< no section of falling keys comes before this one of rising keys
  };

  /// Tiles per set. In a packed call each set has the tiles of all sequences.
  __device__ int tiles() const { return args.kv_places; }
  __device__ int sets() const { return args.kv_shared || is_packed<Tile> ? args.kv_heads : args.kv_heads * args.batch; }
  __device__ int count() const { return sets() * tiles(); }
  /// Called by a warp.
  __device__ Item item(int index, int lane) const {
    const auto [set, nth, section, last] = Sections<int>{sets(), per_section, tiles()}.at(index);
    if constexpr (is_packed<Tile>) {
      const int b = sequence_by_warp<Tile::n>(args.kv_starts, args.batch, nth, lane);
      return {b, set, nth, (args.batch - b & 1) != 0};
    }
    const bool rising = (section & 1) || last;
    const int keys = rising ? nth : tiles() - 1 - nth;
    return {set / args.kv_heads, set % args.kv_heads, keys, rising, last && !(section & 1)};
  }
};

}  // namespace attune

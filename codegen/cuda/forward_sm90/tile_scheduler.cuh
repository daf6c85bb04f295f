// codegen/cuda/forward_sm90/tile_scheduler.cuh — tiles of Hopper's forward: what their Tile says, a block's shared
// memory, and the tile scheduler: which tiles of queries a block works on, in which order
#pragma once

#include "codegen/cuda/forward_sm90/layout.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/parts/entry.cuh"
#include "codegen/cuda/parts/ring_sm90.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

// ---- which softmax --------------------------------------------------------------------------------------------------

/// True if powers are relative to the maximum of the first tiles; query tiles whose powers overflow are recomputed.
/// With two walks, the exponentials of the first hide the latency of a maximum, and powers need not be kept.
template <class Tile, class User>
constexpr bool recomputes = !fixed_maximum<Tile, User> && !true_maximum<Tile, User> && !two_walks<User>;

/// True if the maxima are raised ahead of a tile by the difference that its term() makes at most.
template <class Tile, class User>
constexpr bool leads = recomputes<Tile, User>&& HasTerm<User>&& ElementOf<typename Tile::Element>::bytes >= 2;

/// The powers of a tile's softmax are at most 2 to this. FP8 operands have to use the range of their type: e4m3 has
/// numbers between 2^-9 and 448.
template <class Element>
constexpr float most_exponent = 0;
template <>
constexpr float most_exponent<e4m3> = 8;
/// The smallest sum of powers of a row that is large enough: powers relative to a maximum that is too high lose digits,
/// and with Traits::degree above 1, prob() of them does.
template <class Element, bool degree_above_1>
constexpr float too_small = degree_above_1 ? 0x1p-15f : 0x1p-60f;
template <>
constexpr float too_small<f16, false> = 0x1p-6f;
/// A row's maximum is raised once a thread's powers sum up to this, or to more than their type holds.
template <class Element>
constexpr float too_large = 1024;
template <>
constexpr float too_large<e4m3> = 448;

// ---- shared memory -----------------------------------------------------------------------------------------------

/// True if a previous kernel has transposed the values, keys along rows.
template <class Tile>
constexpr bool come_transposed = requires {
  requires Tile::transposed != 0;
};
/// FP8 products read values with keys along rows. Unless values come transposed, TMA loads them to `loaded`, and warps
/// transpose them into `v`, where products read them. Other values load into `v` directly.
template <class Tile>
constexpr bool transposes_values = ElementOf<typename Tile::Element>::bytes == 1 && !come_transposed<Tile>;

/// True if what depends on the distance of a pair is computed for each distance.
template <class Tile>
constexpr bool has_distances = requires {
  requires Tile::distances != 0;
};
/// Words of a column that a block's warps read in shared memory; 0: each warp reads columns itself.
template <class Tile>
constexpr int words_of_column = 0;
template <class Tile>
requires requires { Tile::column_words; }
constexpr int words_of_column<Tile> = Tile::column_words;
template <class Tile>
constexpr bool has_columns = words_of_column<Tile> != 0;
/// True if a warpgroup of its own draws dropout's decisions for the others.
template <class Tile>
constexpr bool is_drawn = requires {
  requires Tile::drawn != 0;
};
/// Warps that compute one of these.
template <class Tile>
constexpr int number_warps = is_drawn<Tile>                             ? 4
                             : has_distances<Tile> || has_columns<Tile> ? 2
                                                                        : 0;

/// True if results leave through the memory of the last values: those of the last warpgroup through that of the last
/// tile, those of the warpgroup before it through that of the tile before.
template <class Tile>
constexpr bool leave_over_values = Tile::own_o == 2;

/// Tiles of queries that are scheduled ahead of the warps that need them.
template <class Tile>
constexpr int items_ahead = 1;
template <class Tile>
requires requires { Tile::items; }
constexpr int items_ahead<Tile> = Tile::items;

/// Numbers of TF32 that an f32 of keys and values is split into, by a previous kernel; 0: not at all.
template <class Tile>
constexpr int parts_of = 0;
template <class Tile>
requires requires { Tile::parts; }
constexpr int parts_of<Tile> = Tile::parts;

/// True if a warpgroup ends the scores, the softmax and the results of a tile of keys before it begins the next tile.
template <class Tile>
constexpr bool in_turn = parts_of<Tile> > 1 || (ElementOf<typename Tile::Element>::bytes == 1 && Tile::dv > 128);

/// True if a warpgroup may begin at a later tile of keys than the last warpgroup of its block, which has the last
/// queries: the tiles before it are masked out for all of its rows. In 128 x 128 a causal mask leaves no
/// whole tile out for one warpgroup; 192 x 96 was slower with a later begin; two walks have no code for it.
template <class Tile, class User>
constexpr bool begins_late = User::traits.skips && !User::traits.listed && Tile::heads == 1 && Tile::n < Tile::m &&
                             Tile::m % Tile::n != 0 && ElementOf<typename Tile::Element>::bytes == 2 &&
                             !two_walks<User>;

/// The shared memory of a block: addresses, from layout/.
template <class Tile>
struct Shared90 {
  static constexpr int chunk = chunk_columns<typename Tile::Element>, o_chunk = chunk_columns<typename Tile::Out>;
  static constexpr ForwardLayout90 at{.m = Tile::m,
                                      .n = Tile::n,
                                      .d = Tile::d,
                                      .dv = Tile::dv,
                                      .stages = Tile::stages,
                                      .q_stages = Tile::q_stages,
                                      .element = ElementOf<typename Tile::Element>::bytes,
                                      .out_element = ElementOf<typename Tile::Out>::bytes,
                                      .own_o = Tile::own_o,
                                      .comes_transposed = come_transposed<Tile>,
                                      .transposes_values = transposes_values<Tile>,
                                      .copies = copied_units<Tile>,
                                      .distances = has_distances<Tile>,
                                      .column_words = words_of_column<Tile>,
                                      .drawn = is_drawn<Tile>,
                                      .items = items_ahead<Tile>,
                                      .per_entry = is_per_entry<Tile>,
                                      .parts = parts_of<Tile> > 1 ? parts_of<Tile> : 1};
  static constexpr int n = Tile::n, parts = at.parts;
  using Element = typename Tile::Element;
  /// Products of 8 and 32 bits read values with keys along rows.
  using Values =
      Either<sizeof(Element) == 2, SharedTile<n, Tile::dv, Element>, SharedTile<Tile::dv, parts * n, Element>>;
  static_assert(Values::bytes == at.v_bytes);

  unsigned base;

  __device__ SharedTile<Tile::m, Tile::d, Element> q() const { return {base + at.q}; }
  __device__ SharedTile<n, parts * Tile::d, Element> k() const { return {base + at.k}; }
  __device__ Values v() const { return {base + at.v}; }
  /// Where values load.
  __device__ unsigned loaded(int stage) const { return base + at.loaded + stage * at.loaded_bytes; }
  __device__ SharedTile<Tile::m, Tile::dv, typename Tile::Out> o() const { return {base + at.o}; }
  __device__ unsigned q_full() const { return base + at.q_full; }
  __device__ unsigned k_full() const { return base + at.k_full; }
  __device__ unsigned v_full() const { return base + at.v_full; }
  __device__ unsigned loaded_full() const { return base + at.loaded_full; }
  __device__ unsigned item_full() const { return base + at.item_full; }
  __device__ unsigned known() const { return base + at.known; }
  __device__ unsigned list_full() const { return base + at.list_full; }
  __device__ unsigned results_left() const { return base + at.results_left; }
  __device__ unsigned tail() const { return base + at.tail; }
};

// ---- which tile of queries ---------------------------------------------------------------------------------------

struct Work {
  int b, tile;  ///< tile < 0: there is no tile at this place
  Heads heads;
};

/// The parts of the keys of each tile of queries. Items are parts of tiles; those of a tile follow one another.
template <class Tile>
__device__ inline int parts_of_keys(const ForwardArgs& args) {
  if constexpr (is_in_parts<Tile>) return key_parts(args).count;
  return 1;
}

/// The longest tiles first, in sections of heads whose keys stay in the cache. Rounds alternate in direction, so no
/// block gets the longer tile of every round. `uneven`: tiles of a head differ in length. The last section then has so
/// many heads that its shorter tiles fill the time of its longest, under a causal mask twice as long as the average.
template <class Tile, bool uneven>
struct Schedule {
  int of_batch;  ///< sets of heads per batch entry; most sets have one head
  int q_tiles;   ///< tiles of queries in the longest sequence
  Sections<int> sections;
  int count;  ///< of items

  __device__ Schedule(const ForwardArgs& args)
      : of_batch(sets_of<Tile>(args)),
        q_tiles(q_tiles_of<Tile>(args.q_len)), sections{is_packed<Tile> ? of_batch : of_batch * args.batch,
                                                        args.section, is_packed<Tile> ? args.order_count : q_tiles,
                                                        last_sets(args)},
        count(sections.sets * sections.of_set * parts_of_keys<Tile>(args)) {}
  __device__ int last_sets(const ForwardArgs& args) const {
    if constexpr (!uneven || is_packed<Tile>) return 0;
    const int blocks = static_cast<int>(gridDim.x), missing = (blocks - args.section * q_tiles % blocks) % blocks;
    // A section whose tiles are some for each block ends evenly by itself.
    return missing <= blocks / 16 ? 0 : min((2 * blocks + q_tiles - 1) / q_tiles, of_batch * args.batch);
  }
  __device__ int index(int round) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    return round * blocks + (round & 1 ? blocks - 1 - block : block);
  }
  __device__ Work work(const ForwardArgs& args, int index) const {
    const auto at = sections.at(index);
    if constexpr (is_packed<Tile>)
      return args.order ? Work{args.order[2 * at.nth], args.order[2 * at.nth + 1], heads_of<Tile>(args, at.set)}
                        : unordered(args, at.nth, heads_of<Tile>(args, at.set));
    else
      return {at.set / of_batch, q_tiles - 1 - at.nth, heads_of<Tile>(args, at.set % of_batch)};
  }
  /// If the host does not know the starts, sequence b has the places from starts[b] / queries + b on, its last tile
  /// first. It has at most one place more than it has tiles.
  __device__ Work unordered(const ForwardArgs& args, int nth, Heads heads) const {
    const int b = sequence_at<queries_of<Tile>>(args.q_starts, args.batch, nth);
    const int length = entry_of<Tile>(args, b).queries.length;
    return {b, q_tiles_of<Tile>(length) - 1 - (nth - place_of<queries_of<Tile>>(args.q_starts, b)), heads};
  }
};

/// A tile of queries on its way from the tile scheduler to the warps that compute it.
struct Item {
  /// Instead of an index. pause: tiles on lists come next. stop: there are no more tiles.
  static constexpr int pause = -1, stop = -2;
  /// Owners of a tile that is computed for the first time, with powers relative to maxima of earlier tiles of keys.
  static constexpr int all = -1;
  int index;
  int owners;  ///< a bit for each warp that the tile is recomputed for; or `all`
  Work work;
  Walk walk;
  Entry entry;
};

/// The tiles that each consumer warp has to recompute. Only that warp adds to its list, and only the scheduling thread
/// empties lists, while no warp adds.
template <class Tile>
struct Recompute {
  using Shared = Shared90<Tile>;
  Shared90<Tile> shared;

  __device__ unsigned at(int warp, int i) const {
    return shared.base + shared.at.recompute + 4 * (warp * (shared.at.recompute_most + 1) + i);
  }
  __device__ void put(int warp, int i, int value) const { shared_put(at(warp, i), value); }
  __device__ int get(int warp, int i) const { return shared_get(at(warp, i)); }
  __device__ int count(int warp) const { return get(warp, 0); }
  /// True if a warp's list holds only as many more tiles as may be in flight: listed tiles are then recomputed first.
  __device__ bool list_full() const { return shared_get_flag(shared.list_full()) != 0; }
  __device__ void set_list_full(bool is) const { shared_put_flag(shared.list_full(), is); }

  struct Next {
    int index, owners;
  };
  /// The first tile after `last` on any list, and the warps that have it. A block takes tiles in the order of their
  /// indices, so lists rise.
  __device__ Next after(int last) const {
    Next next{0x7fffffff, 0};
#pragma unroll 1
    for (int warp = 0; warp < shared.at.warps; ++warp)
#pragma unroll 1
      for (int i = 1; i <= count(warp); ++i) {
        const int index = get(warp, i);
        if (index <= last || index > next.index) continue;
        next.owners = (index == next.index ? next.owners : 0) | 1 << warp;
        next.index = index;
        break;
      }
    return next;
  }
};

template <class Tile, class User>
struct Items {
  using Shared = Shared90<Tile>;
  /// What is the same for all entries is not handed over: of dense calls all, of packed ones the offsets; the offset of
  /// keys is the call's.
  static constexpr int words = sizeof(Item) / 4 - (is_per_entry<Tile> ? 1 : is_packed<Tile> ? 2 : 6);
  static_assert(4 * words <= Shared::at.item_bytes);

  const ForwardArgs& args;
  Shared90<Tile> shared;
  Ring<items_ahead<Tile>> ring{shared.item_full()};
  int late = 0;  ///< of the item taken last, see lateness()

  __device__ unsigned at(int word) const {
    return shared.base + shared.at.item + shared.at.item_bytes * ring.stage + 4 * word;
  }

  /// Waits until all warps have read an earlier item. Scheduling this late makes blocks end more evenly.
  __device__ void wait_for_room() const { ring.acquire(); }
  /// Called by one thread.
  __device__ void give(const Item& item) {
    const auto list = __builtin_bit_cast(Words, item);
#pragma unroll
    for (int i = 0; i < words; ++i) shared_put(at(i), list.word[i]);
    barrier_arrive(ring.full());
    ring.next();
  }
  /// Called by a whole warp, or by one thread on its behalf.
  template <bool Whole>
  __device__ Item take() {
    ring.wait();
    Words list{};
#pragma unroll
    for (int i = 0; i < words; ++i) {
      const int word = shared_get(at(i));
      list.word[i] = Whole ? uniform(word) : word;
    }
    ring.next();
    Item item = __builtin_bit_cast(Item, list);
    if constexpr (!User::traits.listed) item.walk.list = nullptr;
    if constexpr (Tile::heads == 1) {
      late = item.work.heads.count;
      item.work.heads.count = 1;
    }
    if constexpr (!is_packed<Tile> && !is_per_entry<Tile>) item.entry = entry_of<Tile>(args, 0);
    if constexpr (!is_per_entry<Tile>) item.entry.q_offset = args.q_offset;
    item.entry.kv_offset = is_per_entry<Tile> ? args.kv_offset : 0;
    return item;
  }
  /// Called by one thread of each warp: the next item may be scheduled.
  __device__ void done() const {
    barrier_arrive(StageBarriers{ring.barriers + StageBarriers::bytes * ring.before().stage}.empty());
  }

 private:
  struct alignas(8) Words {
    int word[sizeof(Item) / 4];
  };
};

/// Tiles of keys at the beginning of a walk that a warpgroup leaves out: four bits for each warpgroup. The last
/// warpgroup leaves out none. A ring of keys has room for the tiles that are left out and the next one, so that no
/// warpgroup waits for keys that load only after other warpgroups have computed earlier tiles. Results that leave over
/// values are said to have left after the next item's first scores, and only two tiles of its keys load before that.
template <class Tile, class User>
__device__ inline int lateness(const User& user, const Entry& entry, const Where& at, const Walk& walk, int begin) {
  int out = 0;
  const auto head = user.head(at);
  constexpr int room = leave_over_values<Tile> ? 1 : Tile::stages - 1;
  const int most = min(min(walk.first, walk.count - 1), room);
#pragma unroll 1
  for (int group = 0; group < Tile::m / 64 - 1; ++group) {
    const int first = begin + 64 * group, end = min(first + 64, at.q_len);
    if (first >= end) break;
    const Bands bands = counted_from(entry.kv_offset, user.bands(head, at, entry.query(first), entry.query(end)));
    const int tiles = (max(min(bands.end, entry.keys.length), 0) + Tile::n - 1) / Tile::n;
    out |= max(min(walk.last + 1 - tiles, most), 0) << 4 * group;
  }
  return out;
}

template <class Tile, class User>
__device__ inline Item item_of(const ForwardArgs& args, const User& user, int q_tiles, Work work, int index,
                               int owner) {
  const Entry entry = entry_of<Tile>(args, work.b);
  const Where at = entry.at(work.b, work.heads.first);
  const int begin = work.tile * queries_of<Tile>;
  Walk walk = walk_of<Tile>(args, user, entry, at, user.head(at),
                            {begin, min(begin + queries_of<Tile>, entry.queries.length), work.tile, q_tiles});
  if constexpr (is_in_parts<Tile>) walk = part_of(walk, index % parts_of_keys<Tile>(args), parts_of_keys<Tile>(args));
  if constexpr (begins_late<Tile, User>) work.heads.count = lateness<Tile>(user, entry, at, walk, begin);
  return {index, owner, work, walk, entry};
}

// ---- the tile scheduler -------------------------------------------------------------------------------------------

/// One thread finds the tiles of this block ahead of the warps that need them: the divisions took a twentieth of the
/// time of short sequences. Every tile is computed once, and recomputed for the warps that list it. Timing decides when
/// lists are worked off, but not which tiles are on them.
template <class Tile, class User>
__device__ inline void schedule_tiles(const ForwardArgs& args, const User& user, Shared90<Tile> shared) {
  const Schedule<Tile, User::traits.skips && Tile::dynamic> schedule(args);
  Items<Tile, User> items{args, shared};
  const auto give = [&](int index, int owners) {
    const Work work = schedule.work(args, index / parts_of_keys<Tile>(args));
    if (is_packed<Tile> && work.tile < 0) return false;
    items.give(item_of<Tile>(args, user, schedule.q_tiles, work, index, owners));
    return true;
  };
  const auto say = [&](int what) {
    items.give({.index = what, .owners = Item::all, .work = {}, .walk = {}, .entry = {}});
  };
  const Recompute<Tile> recompute{shared};
  int index = static_cast<int>(blockIdx.x), round = 1;
  unsigned phase = 0;
  for (;;) {
    for (; index < schedule.count; ++round) {
      if (recomputes<Tile, User> && recompute.list_full()) break;
      if (give(index, Item::all)) items.wait_for_room();
      if constexpr (Tile::dynamic)
        index = args.next ? static_cast<int>(gridDim.x + atomicAdd(args.next, 1u)) : schedule.count;
      else
        index = schedule.index(round);
    }
    if constexpr (recomputes<Tile, User>) {
      say(Item::pause);
      barrier_wait(shared.known(), phase);
      phase ^= 1;
      recompute.set_list_full(false);
      for (auto next = recompute.after(-1); next.owners; next = recompute.after(next.index)) {
        items.wait_for_room();
        give(next.index, next.owners);
      }
      items.wait_for_room();
      if (index < schedule.count) continue;
    }
    break;
  }
  say(Item::stop);
}

}  // namespace attune

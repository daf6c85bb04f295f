// codegen/cuda/forward_sm90/producer.cuh — where the keys and values of Hopper's forward come from, and the producer
// warp, which loads them and queries into rings of stages
#pragma once

#include "codegen/cuda/forward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// A key source is made once, of the arguments and the address of shared memory. Rows count from an entry's first key.
/// After the last key, rows of keys may hold anything, because the consumers mask them out; rows of values are finite.
template <class Source>
concept KeySource = requires(Source source, typename Source::Places places, int b, int head, Entry entry, unsigned into,
                             unsigned full, int row) {
  /// Threads of the producer warp that load: 1 or all 32.
  requires Source::threads == 1 || Source::threads == 32;
  /// The next rows are those of a key head of a batch entry.
  source.enter(b, head, entry);
  /// What the loads of n keys from `row` on must know, looked up a tile ahead and not awaited.
  source.look_up(row);
  /// Fills a stage at `into` with these keys, in chunks of swizzled rows, and arrives once at `full`.
  source.load_keys(into, full, places);
  /// Does the same for values, in the order that the Tile's products read, or that its transposing warps read.
  source.load_values(into, full, places);
  /// A row's elements in memory, for all 32 lanes of a consumer warp.
  *source.key(row);
  *source.value(row);
};

/// The rows of a key head in memory.
template <class Tile>
struct KeyRows {
  using Element = typename Tile::Element;
  using Shared = Shared90<Tile>;

  const ForwardArgs& args;
  int b, head, batch;
  Range keys;
  Pages pages;

  __device__ explicit KeyRows(const ForwardArgs& args) : args(args), pages(args.page_table, 0) {}
  __device__ void enter(int of_b, int of_head, const Entry& entry) {
    b = of_b;
    head = of_head;
    batch = args.kv_shared || (is_per_entry<Tile> && args.kv_starts) ? 0 : b;
    keys = entry.keys;
    if constexpr (is_paged<Tile>) pages = Pages(args.page_table, b);
  }

  /// True if keys are sequences that follow one another along the positions of one batch entry.
  __device__ bool are_packed() const { return is_packed<Tile> && (!is_per_entry<Tile> || args.kv_starts); }

  /// Null if its page does not exist.
  __device__ const Element* line(const Strided& t, int row) const {
    const Element* const of_head = static_cast<const Element*>(t.data) + head * t.head;
    if constexpr (is_paged<Tile>) {
      const Pages::At at = pages.at(row);
      return pages.exists(at.page) ? of_head + at.page * t.batch + at.row * t.position : nullptr;
    } else {
      return of_head + batch * t.batch + (keys.start + row) * t.position;
    }
  }
  __device__ const Element* key(int row) const { return line(args.k, row); }
  __device__ const Element* value(int row) const { return line(args.v, row); }
};

/// TMA boxes: tensors with a batch entry each, or packed sequences.
template <class Tile>
struct TmaKeys : KeyRows<Tile> {
  using Rows = KeyRows<Tile>;
  using Rows::args, Rows::b, Rows::head, Rows::batch, Rows::keys;
  using typename Rows::Shared;
  static constexpr int threads = 1;
  using Places = int;  ///< the first row

  __device__ TmaKeys(const ForwardArgs& args, unsigned) : Rows(args) {}
  __device__ Places look_up(int row) const { return row; }

  __device__ int box_batch() const { return is_packed<Tile> ? 0 : batch; }

  __device__ void load_keys(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::at.k_bytes);
    for (int c = 0; c < Shared::at.d_chunks; ++c)
      load_box(into + c * Tile::n * chunk_bytes, args.k_map, full, c * Shared::chunk, keys.start + row, head,
               box_batch());
  }
  __device__ void load_values(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::at.loaded_bytes);
    if constexpr (come_transposed<Tile>) {
      // A tile is one box. The tiles of a packed sequence begin at its place.
      const int place = is_packed<Tile> ? keys.start / Tile::n + b : 0;
      load_box(into, args.v_map, full, 0, (place + row / Tile::n) * Shared::at.transposed_rows, head, box_batch());
    } else {
      for (int c = 0; c < Shared::at.dv_chunks; ++c)
        load_box(into + c * Tile::n * chunk_bytes, args.v_map, full, c * Shared::chunk, keys.start + row, head,
                 box_batch());
    }
  }
};

/// Keys, and values with keys along rows, that split_keys_sm90.cuh has split into `parts` numbers of TF32: a box for
/// each part of a tile. The tiles of a packed sequence begin at its place; rows after an entry's last key are zeros.
template <class Tile>
struct SplitKeys : KeyRows<Tile> {
  using Rows = KeyRows<Tile>;
  using Rows::args, Rows::b, Rows::head, Rows::keys;
  using typename Rows::Shared;
  static constexpr int threads = 1;
  using Places = int;  ///< the first row

  __device__ SplitKeys(const ForwardArgs& args, unsigned) : Rows(args) {}
  __device__ Places look_up(int row) const { return row; }

  __device__ void load_keys(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::at.k_bytes);
    load<Shared::at.d_chunks * Tile::n>(into, args.k_map, full, row);
  }
  __device__ void load_values(unsigned into, unsigned full, int row) const {
    barrier_expect(full, Shared::at.loaded_bytes);
    load<Shared::at.transposed_rows>(into, args.v_map, full, row);
  }

 private:
  template <int rows>
  __device__ void load(unsigned into, const TensorMap& map, unsigned full, int row) const {
    const bool packed = this->are_packed(), shared = !is_per_entry<Tile> && args.kv_shared;
    const int tile = (packed ? keys.start / Tile::n + b : 0) + row / Tile::n;
#pragma unroll
    for (int part = 0; part < parts_of<Tile>; ++part)
      load_box(into + part * rows * chunk_bytes, map, full, 0, (tile * parts_of<Tile> + part) * rows, head,
               packed || shared ? 0 : b);
  }
};

/// True if a previous kernel has copied keys and values out of their pages.
template <class Tile>
constexpr bool are_gathered = requires {
  requires Tile::gathered != 0;
};

/// Keys of entries that have their own lengths: in pages, packed, or in a batch entry each. All lanes look up where
/// boxes of Tile::box rows lie, one of them loads the boxes.
template <class Tile>
struct EntryKeys : KeyRows<Tile> {
  using Rows = KeyRows<Tile>;
  using Rows::args, Rows::batch, Rows::head, Rows::keys, Rows::pages;
  using typename Rows::Shared;
  static constexpr int threads = 32, box = Tile::box, boxes = Tile::n / box, of_lane = (boxes + 31) / 32;
  static_assert(boxes * box == Tile::n && !come_transposed<Tile> && !transposes_values<Tile>);

  /// The first row. Over pages also the page of each of this lane's boxes, and the box's first row in that page.
  struct Places {
    int row, page[of_lane], row_of_page[of_lane];
  };

  const unsigned tail;  ///< a barrier
  unsigned tail_phase = 0;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  __device__ EntryKeys(const ForwardArgs& args, unsigned shared) : Rows(args), tail(Shared{shared}.tail()) {}

  __device__ Places look_up(int row) const {
    Places out;
    out.row = row;
    if constexpr (is_paged<Tile>)
#pragma unroll
      for (int j = 0; j < of_lane; ++j) {
        // Pages after the last key need not exist.
        const int nth = 32 * j + lane, first = row + nth * box;
        const Pages::At at = nth < boxes && first >= 0 && first < keys.length ? pages.at(first)
                                                                              : Pages::At{pages.count, 0};
        out.page[j] = at.page;
        out.row_of_page[j] = at.row;
      }
    return out;
  }

  __device__ void load_keys(unsigned into, unsigned full, const Places& at) const {
    load<Shared::at.d_chunks>(into, args.k_map, full, at);
  }
  /// The box with the last key also loads the rows after it. A tile of queries visits at most one such tile of keys.
  __device__ void load_values(unsigned into, unsigned full, const Places& at) {
    const int rows = keys.length - at.row, loaded = min((rows + box - 1) / box * box, Tile::n);
    if (rows >= loaded) return load<Shared::at.dv_chunks>(into, args.v_map, full, at);
    load<Shared::at.dv_chunks>(into, args.v_map, tail, at);
    barrier_wait(tail, tail_phase);
    __syncwarp();
    tail_phase ^= 1;
    constexpr int units = chunk_bytes / 16;
#pragma unroll 1
    for (int c = 0; c < Shared::at.dv_chunks; ++c)
#pragma unroll 1
      for (int i = rows * units + lane; i < loaded * units; i += 32)
        shared_put(into + c * Tile::n * chunk_bytes + i * 16, 0u, 0u, 0u, 0u);
    proxy_fence();
    arrive_as_warp(full, lane);
  }

 private:
  template <int chunks>
  __device__ void load(unsigned into, const TensorMap& map, unsigned full, const Places& at) const {
    const auto expect = [&] { barrier_expect(full, chunks * Tile::n * chunk_bytes); };
    const auto load_one = [&](int nth, int position, int batch) {
#pragma unroll
      for (int c = 0; c < chunks; ++c)
        load_box(into + (c * Tile::n + nth * box) * chunk_bytes, map, full, c * Shared::chunk, position, head, batch);
    };
    if constexpr (!is_paged<Tile>) {
      static_assert(boxes == 1);
      if (elected()) {
        expect();
        load_one(0, keys.start + at.row, batch);
      }
    } else {
      // Boxes that are whole pages have one coordinate less: 0.99 to 1.04 of the rate of others.
      if (pages.rows == box)
        load_pages<true>(expect, load_one, at);
      else
        load_pages<false>(expect, load_one, at);
    }
  }
  template <bool whole, class Expect, class Load>
  __device__ void load_pages(const Expect& expect, const Load& load_one, const Places& at) const {
    // One lane issues these boxes in a row. With more of them, the coordinates do not fit the uniform registers.
    constexpr int some = min(boxes, whole ? 8 : 4);
#pragma unroll
    for (int j = 0; j < of_lane; ++j) {
      // A missing page gets a coordinate past the pool, so TMA fills its boxes with 0.
      const int page = pages.exists(at.page[j]) ? at.page[j] : pages.count;
#pragma unroll 1
      for (int first = 0; first < min(boxes - 32 * j, 32); first += some) {
        int of[some], row[some];
#pragma unroll
        for (int i = 0; i < some; ++i) {
          of[i] = __shfl_sync(~0u, page, first + i);
          row[i] = whole ? 0 : __shfl_sync(~0u, at.row_of_page[j], first + i);
        }
        if (elected()) {
          if (j == 0 && first == 0) expect();
#pragma unroll
          for (int i = 0; i < some; ++i)
            if (boxes % some == 0 || 32 * j + first + i < boxes) load_one(32 * j + first + i, row[i], of[i]);
        }
      }
    }
  }
};

/// A Tile's key source: Tile::Keys if it names one.
template <class Tile>
struct KeySourceOf {
  using Type =
      Either<(parts_of<Tile> > 0), SplitKeys<Tile>, Either<is_per_entry<Tile>, EntryKeys<Tile>, TmaKeys<Tile>>>;
};
template <class Tile>
requires requires { typename Tile::Keys; }
struct KeySourceOf<Tile> {
  using Type = typename Tile::Keys;
};

/// What a producer warp loads. Boxes of pages take long to issue, so a second warp loads the values, unless that warp
/// computes distances or columns.
enum class Loads { all, keys, values };
template <class Tile>
constexpr bool values_have_warp = is_per_entry<Tile>&& parts_of<Tile> == 0 && !has_distances<Tile> &&
                                  !has_columns<Tile>;

// ---- the producer warp ----------------------------------------------------------------------------------------------

template <class Tile, class User, Loads what = Loads::all>
struct ForwardProducer90 {
  using Shared = Shared90<Tile>;
  using Source = typename KeySourceOf<Tile>::Type;
  static_assert(KeySource<Source>);
  static constexpr bool has_keys = what != Loads::values, has_values = what != Loads::keys;

  const ForwardArgs& args;
  Shared90<Tile> shared;
  int lane;
  Ring<Tile::q_stages> q{shared.q_full()};
  Ring<Tile::stages> k{shared.k_full()}, v{shared.loaded_full()};
  Items<Tile, User> items{args, shared};
  Source source{args, shared.base};
  unsigned results_phase = 1;  ///< parity of what results_left has completed

  /// True if this lane of the producer warp loads.
  __device__ static bool loads() {
    if constexpr (Source::threads == 1) return elected();
    return true;
  }

  __device__ void run() {
    for (;;) {
      const Item item = items.template take<false>();
      if (item.index == Item::stop) return;
      if (item.walk.count > 0) {
        load(item);
      } else {
        // Consumers need no loads for the next item, and must not get two items ahead of this phase.
        if (item.index >= 0) {
          if (has_values) wait_for_results();
          if (has_keys) lend_queries();
        }
        let_schedule();
      }
    }
  }

  /// The next tile may be scheduled. Scheduling it much sooner than it can be loaded makes blocks end less evenly.
  __device__ void let_schedule() const {
    if constexpr (Source::threads > 1) __syncwarp();
    if (speaks()) items.done();
  }

  /// Waits until the results of the tile of queries before have left the memory of values.
  __device__ void wait_for_results() {
    if constexpr (leave_over_values<Tile>) {
      barrier_wait(shared.results_left(), results_phase);
      results_phase ^= 1;
    }
  }

  /// Results of a tile of queries without keys take a phase of the memory of queries, too, if they leave through it.
  __device__ void lend_queries() {
    if constexpr (!Tile::own_o) {
      q.acquire();
      if (speaks()) barrier_arrive(q.full());
      q.next();
    }
  }

  /// True if this thread arrives for the warp.
  __device__ bool speaks() const { return Source::threads == 1 || lane == 0; }

  __device__ void load_queries(const Item& item) {
    const Work& work = item.work;
    const int head = work.heads.first / args.group, batch = is_packed<Tile> ? 0 : work.b,
              position = item.entry.queries.start + work.tile * queries_of<Tile>;
    q.acquire();
    if (Source::threads == 1 || elected()) load_boxes(work, head, batch, position);
    q.next();
  }
  __device__ void load_boxes(const Work& work, int head, int batch, int position) const {
    barrier_expect(q.full(), Shared::at.q_bytes);
    for (int c = 0; c < Shared::at.d_chunks; ++c) {
      const unsigned into = shared.q()[q.stage] + c * Tile::m * chunk_bytes;
      if constexpr (Tile::heads == 1)
        load_box(into, args.q_map, q.full(), c * Shared::chunk, position, work.heads.first, batch);
      else
        load_box_of_heads(into, args.q_map, q.full(),
                          {c * Shared::chunk, work.heads.first % args.group, position, head, batch});
    }
  }

  /// Loads the keys of each tile, for a first walk, which needs no values; if `queries`, queries after the first keys.
  __device__ void load_keys(const Item& item, bool queries) {
    const Walk& walk = item.walk;
    typename Source::Places here = source.look_up(walk.last * Tile::n), next = source.look_up(walk.tile(1) * Tile::n);
#pragma unroll 1
    for (int i = 0; i < walk.count; ++i) {
      k.acquire();
      source.load_keys(shared.k()[k.stage], k.full(), here);
      k.next();
      if (queries && i == 0) load_queries(item);
      here = next;
      next = source.look_up(walk.tile(i + 2) * Tile::n);
    }
  }

  /// Loads the queries, then the keys of each tile and the values of the tile before, or in_turn those of the tile.
  __device__ void load(const Item& item) {
    // With one stage of queries, the first keys can load before the previous tile is done with its queries. A whole
    // warp that loads both has no registers for it, and none to schedule early.
    constexpr bool light = Source::threads == 1 || what != Loads::all, keys_first = Tile::q_stages == 1 && light;
    // One warp loads the values of a tile after the keys of the next tile.
    constexpr bool behind = what == Loads::all && !in_turn<Tile>;
    const Walk& walk = item.walk;
    if (has_keys && !keys_first) load_queries(item);
    source.enter(item.work.b, item.work.heads.first / args.group, item.entry);
    if constexpr (two_walks<User> && has_keys) load_keys(item, keys_first);
    // Lists and places are read one tile ahead of the loads.
    typename Source::Places here = source.look_up(walk.last * Tile::n), before{},
                            next = source.look_up(walk.tile(1) * Tile::n);
#pragma unroll 1
    for (int i = 0; i < walk.count + behind; ++i) {
      // Scheduling takes as long as a tile of keys.
      if (light && i == walk.count - 1) let_schedule();
      if (has_keys && i < walk.count) {
        k.acquire();
        source.load_keys(shared.k()[k.stage], k.full(), here);
        k.next();
        if (keys_first && !two_walks<User> && i == 0) load_queries(item);
      }
      if (has_values && i >= behind) {
        v.acquire();
        if (i == behind) wait_for_results();
        source.load_values(shared.loaded(v.stage), v.full(), behind ? before : here);
        v.next();
      }
      if constexpr (behind) before = here;
      here = next;
      next = source.look_up(walk.tile(i + 2) * Tile::n);
    }
    if (!light) let_schedule();
  }
};

}  // namespace attune

// codegen/cuda/backward_sm90/producer.cuh — the producer warp of Hopper's backward, which finds the steps of its
// block's items, and the loading warp, which loads a step: operands, lse and delta
#pragma once

#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/contract/schedule.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

// ---- rows --------------------------------------------------------------------------------------------------------

/// A lane has the rows lane, lane + 32, ... of a tile of queries.
template <class Tile>
constexpr int rows_each_lane = (Tile::m + 31) / 32;

/// Reads a lane's rows of a tile of a sequence that begins at q_start, all at once, and calls then(nth, row end) for
/// each.
template <class Tile, class User, class Then>
__device__ inline void read_rows(const BackwardArgs& args, const User& user, Where at, int q_start, int tile, int lane,
                                 const Then& then) {
  constexpr int m = Tile::m, rows = rows_each_lane<Tile>;
  const int first = tile * m + lane;
  const auto has = [&](int i) { return first + 32 * i < at.q_len && (m % 32 == 0 || 32 * i + lane < m); };
  float lse[rows], delta[rows];
  const auto read = [&](float(&to)[rows], const Rows& all) {
    const float* from = all.data + at.b * all.batch + at.h * all.head + (q_start + first) * all.position;
#pragma unroll
    for (int i = 0; i < rows; ++i, from += 32 * all.position) to[i] = has(i) ? __ldg(from) : 0.0f;
  };
  read(lse, args.lse);
  read(delta, args.delta);
  const auto head = user.head(at);
  const Int origin = args.q_offset + tile * m;
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const Int q = args.q_offset + first + 32 * i;
    then(i, has(i) ? row_end(user, lse[i], user.rest(head, user.row(head, at, q), at, origin, q), delta[i]) : no_row());
  }
}

template <class Tile>
__device__ inline void put_row(Shared90Backward<Tile> shared, int stage, int lane, int nth, const RowEnd& end) {
  if (Tile::m % 32 != 0 && 32 * nth + lane >= Tile::m) return;
  const unsigned to = shared.base + 4 * (stage * Tile::m + 32 * nth + lane);
  shared_put(to + shared.at.under, __float_as_int(end.under));
  shared_put(to + shared.at.delta, __float_as_int(end.delta));
}

// ---- operands ----------------------------------------------------------------------------------------------------

/// Where a step's operands lie: rows counted in their tensors.
struct StepAt {
  int b, h, q, kv, kv_head;
};
/// Rows of a head, from `first` on, in a tensor.
struct Boxes {
  const TensorMap& map;
  int first, head, batch;
};
template <class Into>
__device__ inline void load_boxes(Into into, unsigned barrier, const Boxes& from) {
  for (int c = 0; c < into.chunks; ++c)
    load_box(into + c * into.chunk_size, from.map, barrier, c * into.chunk, from.first, from.head, from.batch);
}

/// Called by one thread: queries and grad_o.
template <class Tile>
__device__ inline void load_queries(const BackwardArgs& args, Shared90Backward<Tile> shared, int what, int stage,
                                    const StepAt& at) {
  const unsigned full = shared.full()[stage].full;
  if (what & (Step::empty | Step::stop)) {
    barrier_arrive(full);
    return;
  }
  const int q_batch = is_packed<Tile> ? 0 : at.b;
  barrier_expect(full, shared.at.q_bytes + shared.at.grad_o_bytes);
  load_boxes(shared.q()[stage], full, {args.q_map, at.q, at.h, q_batch});
  load_boxes(shared.grad_o()[stage], full, {args.grad_o_map, at.q, at.h, q_batch});
}

/// Called by one thread, in an item's first step: keys and values. Items without a step take a phase of keys_empty too.
template <class Tile>
__device__ inline void load_keys(const BackwardArgs& args, Shared90Backward<Tile> shared, int what, unsigned keys_phase,
                                 const StepAt& at) {
  barrier_wait(shared.keys_empty(), keys_phase ^ 1);
  if (what & Step::empty) return;
  const int kv_batch = is_packed<Tile> || args.kv_shared ? 0 : at.b;
  barrier_expect(shared.k_full(), shared.at.k_bytes);
  load_boxes(shared.k(), shared.k_full(), {args.k_map, at.kv, at.kv_head, kv_batch});
  barrier_expect(shared.v_full(), shared.at.v_bytes);
  load_boxes(shared.v(), shared.v_full(), {args.v_map, at.kv, at.kv_head, kv_batch});
}

// ---- the loading warp -------------------------------------------------------------------------------------------

/// Takes the words of each step, which the producer warp writes once the step's stage is free.
template <class Tile, class User>
__device__ inline void load_steps(const BackwardArgs& args, const User& user, Shared90Backward<Tile> shared, int lane) {
  using Shared = Shared90Backward<Tile>;
  static_assert(Tile::stages == 2);
  // The number of steps, and in the last bit the phase of keys, together because registers are short.
  constexpr unsigned keys_bit = 1u << 31;
#pragma unroll 1
  for (unsigned step = 0;; ++step) {
    barrier_wait(shared.known(step), step / steps_kept & 1);
    const auto word = [&](int i) { return shared_get(step_word(shared, step, i)); };
    const int stage = static_cast<int>(step & 1), what = uniform(word(0));
    const bool begins = what & (Step::first | Step::empty);
    const auto places = [&] {
      return StepAt{word(2), word(3), word(8) + word(1) * Tile::m, word(10) + word(4) * Tile::n, word(5)};
    };
    constexpr bool rows_first = !copies_for_backward<Tile, User> && rows_each_lane<Tile> < 4;
    const auto load_keys_now = [&] {
      if (begins && elected()) load_keys(args, shared, what, step >> 31, places());
      __syncwarp();
    };
    if (elected()) load_queries(args, shared, what, stage, places());
    __syncwarp();
    if constexpr (!rows_first) load_keys_now();
    if constexpr (copies_for_backward<Tile, User>) {
      constexpr bool two = copies_two<Tile, User>;
      const auto wait_for_copied = [&] {
        if (Shared::shares_copied && !(what & Step::stop)) barrier_wait(shared.copied_empty(), (step & 1) ^ 1);
      };
      const auto copy = [&](const auto& tile) {
        if (what & (Step::empty | Step::stop)) return;
        const Where at{word(2), word(3), word(9), word(11)};
        const int first = word(1) * Tile::m;
        tile.start(0, user.head(at), at, args.q_offset + first, at.q_len - first, word(4) * Tile::n);
        copy_commit();
      };
      if (begins) barrier_wait(shared.results_empty(), (step >> 31) ^ 1);
      const int ds = Shared::at.ds + stage * Shared::at.ds_bytes;
      if constexpr (!two) wait_for_copied();
      CopiedTile90<User, Tile::m, Tile::n, 0, true> copied{user, shared.base + ds, lane};
      if constexpr (Shared::wide && !two) copied.odd = Shared::copied(stage) - ds;
      copy(copied);
      if constexpr (two) {
        wait_for_copied();
        copy(CopiedTile90<User, Tile::m, Tile::n, 1, true>{user, shared.base + Shared::copied(stage), lane});
      }
    }
    if (!(what & (Step::empty | Step::stop)))
      read_rows<Tile>(args, user, Where{word(2), word(3), word(9), word(11)}, word(8), word(1), lane,
                      [&](int nth, const RowEnd& end) { put_row(shared, stage, lane, nth, end); });
    // After the rows, which can be read while the previous item still uses its keys.
    if constexpr (rows_first) load_keys_now();
    if (begins) step ^= keys_bit;
    if constexpr (copies_for_backward<Tile, User>) copy_wait<0>();
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.full()[stage].full);
    if (what & Step::stop) return;
  }
}

template <class Tile, class User>
struct Loader90Backward {
  using Shared = Shared90Backward<Tile>;
  static constexpr int m = Tile::m, n = Tile::n;

  const BackwardArgs& args;
  const User& user;
  Shared shared;
  int lane;
  unsigned count = 0;  ///< steps handed over
  /// The step found last, one word per lane. Whether it is its item's last depends on what follows it.
  int word = 0;
  /// The fields of an item lie in lanes, one each, because this warp has few registers. Four are those of
  /// Step.
  static constexpr int keys = 0, kv_head = 1, of_b = 2, rising = 3, q_start = 8, q_len = 9, kv_start = 10, kv_len = 11,
                       of_section = 12, nth_pass = 13, in_turn = 14;
  int held = 0;

  __device__ void put(int at, int x) { held = lane == at ? x : held; }
  __device__ int get(int at) const { return __shfl_sync(~0u, held, at); }
  /// Where sequence b lies, one read per lane: a packed call's tiles are short, so reads in turn would show.
  __device__ void find_sequence(int b) {
    if constexpr (is_packed<Tile>) {
      const bool of_kv = lane & 2, asks = lane >= q_start && lane <= kv_len;
      const int x = asks ? (of_kv ? args.kv_starts : args.q_starts)[b + (lane & 1)] : 0,
                start = __shfl_xor_sync(~0u, x, 1);
      if (asks) held = lane & 1 ? min(x - start, of_kv ? args.kv_len : args.q_len) : x;
    }
  }

  __device__ void find(const Step& step) {
    word = lane == 0   ? step.what
           : lane == 1 ? step.queries
           : lane == 2 ? step.b
           : lane == 3 ? step.h
           : lane == 4 ? step.keys
           : lane == 5 ? step.kv_head
           : lane == 6 ? step.sums
           : lane == 7 ? step.added_before
                       : held;
  }

  __device__ void hand_over(int more) {
    if (lane == 0) word |= more;
    static_assert(Tile::stages == 2);
    shared.full()[count & 1].acquire(count >> 1 & 1);
    if (lane < step_words) shared_put(step_word(shared, count, lane), word);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared.known(count));
    ++count;
  }

  /// Finds the sets per section: args.section, or more if items are short, because short items start in faster
  /// succession; and for path 2 whether items have few steps per head. The steps per item come from a table, or from
  /// the bands of 32 sampled tiles, one per lane, which are spread over all heads and along the queries, or lie in the
  /// middle of some sequences. All blocks get the same result.
  __device__ void find_sections() {
    float visits = 0, keys = 0;
    if constexpr (User::traits.listed) {
      visits = static_cast<float>(*args.visited);
      keys = static_cast<float>(args.tile_heads) *
             (is_packed<Tile> ? args.kv_places : args.tile_batches * ((args.kv_len + n - 1) / n));
    } else {
      const int b = lane * args.batch / 32;
      const Where at = entry_of<Tile>(args, b).at(b, lane % args.q_heads);
      const int tiles = (at.q_len + m - 1) / m, tile = is_packed<Tile> ? tiles / 2 : lane * tiles / 32;
      const int begin = tile * m, end = min(begin + m, at.q_len);
      if (begin < end) {
        const Bands bands = user.bands(user.head(at), at, args.q_offset + begin, args.q_offset + end);
        visits = static_cast<float>(max(end_tile_of(bands, at.kv_len, n) - first_tile_of(bands, n), 0)) * tiles;
      }
      keys = static_cast<float>((at.kv_len + n - 1) / n);
#pragma unroll
      for (int i = 16; i > 0; i /= 2) {
        visits += __shfl_xor_sync(~0u, visits, i);
        keys += __shfl_xor_sync(~0u, keys, i);
      }
    }
    const float steps = visits * (args.kv_shared ? args.group * args.batch : args.group);
    // `apart`: steps that a tile needs to pass dQ on, times the blocks of a large GPU.
    constexpr float apart = items_apart(m, false);
    put(of_section, max(args.section, static_cast<int>(min(apart * keys / max(steps, 1.0f), 4096.0f))));
    constexpr float few = 2048 / m;
    if constexpr (path_of<Tile> == 2) put(in_turn, visits > few * keys);
  }

  /// The number of tiles visited before; if dQ is completed, below it a bit if no tile is visited after.
  static constexpr int met_before = completes_dq<Tile> ? 3 : 2;
  static __device__ int met_as(int before, bool last) { return completes_dq<Tile> ? 2 * before + last : before; }
  /// Where dS is stored, launches may divide the keys, and the last keys come first for every set. A table does not say
  /// how many tiles a launch's keys have before them if keys rise.
  __device__ bool may_rise() const { return !User::traits.listed || user.stored_ds.tiles * n >= args.kv_len; }
  /// If keys rise, an item comes after the tiles of keys from `from` to its own, plus this many: earlier launches have
  /// added the last ones of [from, to), and later launches add the first ones.
  __device__ int added_by_launches(int from, int to) const {
    const int first = user.stored_ds.first_tile;
    return max(to - first - user.stored_ds.tiles, 0) - max(first - from, 0);
  }
  /// How a tile of queries meets a tile of keys: `apart` if the queries do not visit the keys; otherwise four times
  /// met_as(), plus Visit::Kept. `falls`: keys are scheduled rising.
  __device__ int meeting(Where at, int tile, int keys, bool falls) const {
    const int tiles = (at.q_len + m - 1) / m, begin = tile * m, end = min(begin + m, at.q_len);
    constexpr int apart = is_alone<Tile> ? 0 : -1;
    if (tile >= tiles) return -1;
    if constexpr (User::traits.listed) {
      const unsigned visit = visit_of(args, at, n, tile, keys);
      if (visit == 0) return apart;
      const unsigned below = visit >> Visit::below_at & Visit::most_tiles, above = (visit >> Visit::above_at) - 1;
      const bool last = completes_dq<Tile> && (falls ? above : below) == 0;
      int kept = visit & Visit::kept;
      if (end - begin < m && kept == Visit::whole) kept = Visit::part;
      return 4 * met_as(static_cast<int>(falls ? below : above), last) + kept;
    }
    const Bands bands = user.bands(user.head(at), at, args.q_offset + begin, args.q_offset + end);
    const int from = first_tile_of(bands, n), to = end_tile_of(bands, at.kv_len, n), kv = keys * n;
    if (keys < from || keys >= to) return apart;
    const bool whole = end - begin == m && bands.full_begin <= kv && kv + n <= min(bands.full_end, at.kv_len);
    const bool last = completes_dq<Tile> && keys == (falls ? to - 1 : from);
    int kept = whole ? Visit::whole : Visit::part;
    if constexpr (has_rests<Tile, User>)
      if (!whole)
        kept = kv + n / 2 >= bands.end ? Visit::first_half : kv + n / 2 <= bands.begin ? Visit::second_half : kept;
    int before = falls ? keys - from : to - 1 - keys;
    if constexpr (User::gradient.by_ds > 0)
      if (falls) before += added_by_launches(from, to);
    return 4 * met_as(before, last) + kept;
  }

  /// Finds the tiles of queries that visit these keys as the forward does, from bands or from a table, 32 tiles at a
  /// time, one per lane. Queries count the tiles of keys that they visit in the same way, so no count misses a tile.
  /// Not split up: parts of it took four bytes more than this warp's registers.
  __device__ void run() {
    // The rows' lse and delta, and tables, come from previous kernels. Other warps wait for this warp's steps instead.
    wait_for_kernel_before();
    find_sections();
    const auto items = [&] { return Items90Backward<Tile>{args, get(of_section)}; };
    put(q_len, args.q_len);
    put(kv_len, args.kv_len);
    const int all_tiles = (args.q_len + m - 1) / m;
    int index = static_cast<int>(blockIdx.x);
    // A block takes its next item when this one ends: taken earlier, it would keep others waiting for that item's dQ.
    const auto next_item = [&] {
      int next = 0;
      if (lane == 0) next = static_cast<int>(gridDim.x + atomicAdd(args.next, 1u));
      index = uniform(next);
    };
#pragma unroll 1
    while (index < items().count()) {
      {
        auto item = items().item(index, lane);
        if constexpr (is_packed<Tile>) {
          find_sequence(item.b);
          item.keys -= get(kv_start) / n + item.b;
          // The queries of a sequence without keys get their dQ from an item alone.
          const auto length = [&] { return is_alone<Tile> ? max(get(kv_len), 1) : get(kv_len); };
          if (item.keys * n >= length()) {
            next_item();
            continue;
          }
          if constexpr (User::gradient.by_ds > 0) item.rising = item.rising && may_rise();
          if (!item.rising) item.keys = (length() + n - 1) / n - 1 - item.keys;
          if constexpr (User::gradient.by_ds > 0)
            if (item.keys < user.stored_ds.first_tile ||
                item.keys >= user.stored_ds.first_tile + user.stored_ds.tiles) {
              next_item();
              continue;
            }
        } else if constexpr (User::gradient.by_ds > 0) {
          if (item.rising && !may_rise()) {
            item.rising = false;
            item.keys = items().tiles() - 1 - item.keys;
          }
          item.keys += user.stored_ds.first_tile;
        }
        put(keys, item.keys);
        put(kv_head, item.kv_head);
        put(of_b, item.b);
        put(rising, item.rising);
        if constexpr (path_of<Tile> == 1) put(in_turn, item.unpaired);
      }
      bool found = false;
      const auto heads = [&] { return args.kv_shared ? args.group * args.batch : args.group; };
      const auto batch_of = [&](int g) { return args.kv_shared ? g / args.group : get(of_b); };
      const auto head_of = [&](int g) { return get(kv_head) * args.group + (args.kv_shared ? g % args.group : g); };
#pragma unroll 1
      for (put(nth_pass, 0); get(nth_pass) < HeadsVisited<Tile>::passes(heads(), get(in_turn));
           put(nth_pass, get(nth_pass) + 1)) {
        const auto now = HeadsVisited<Tile>::at(get(nth_pass), heads(), get(rising), get(in_turn));
        const int at_once = 32 / now.lanes;
#pragma unroll 1
        for (int i = 0; i < all_tiles; i += at_once) {
          const int base = now.falls ? (all_tiles - 1) / at_once * at_once - i : i;
          int met;
          {
            const int g = min(now.begin + (lane & (now.lanes - 1)), now.end - 1);
            const Where where{batch_of(g), head_of(g), get(q_len), get(kv_len)};
            met = meeting(where, base + lane / now.lanes, get(keys), get(rising));
            if (path_of<Tile> != 0 && (lane & (now.lanes - 1)) >= now.end - now.begin) met = -1;
          }
          unsigned left = __ballot_sync(~0u, met >= 0);
#pragma unroll 1
          while (left) {
            const int nth = now.falls ? 31 - __clz(static_cast<int>(left)) : __ffs(static_cast<int>(left)) - 1;
            left ^= 1u << nth;
            if (found) hand_over(0);
            const int meets = __shfl_sync(~0u, met, nth), g = now.begin + (nth & (now.lanes - 1)), b = batch_of(g),
                      h = head_of(g), tile = base + nth / now.lanes;
            const bool says_falls = User::gradient.by_diagonal > 0 && now.falls;
            const bool completes = completes_dq<Tile> && meets & 4;
            const int kept = meets & static_cast<int>(Visit::kept);
            const int rests = kept == Visit::first_half    ? 2 * Step::rests
                              : kept == Visit::second_half ? Step::rests
                                                           : 0;
            find({.what = (found ? 0 : Step::first) | (kept == Visit::whole ? Step::whole : 0) |
                          (has_rests<Tile, User> ? rests : 0) | (says_falls ? Step::falls : 0) |
                          (completes ? Step::completes : 0),
                  .queries = tile,
                  .b = b,
                  .h = h,
                  .keys = get(keys),
                  .kv_head = get(kv_head),
                  .sums = sums_of<Tile>(args, b, h, get(q_start)) + tile,
                  .added_before = meets >> met_before});
            found = true;
          }
        }
      }
      if (!found) find({.what = Step::empty, .b = get(of_b), .keys = get(keys), .kv_head = get(kv_head)});
      hand_over(Step::last);
      next_item();
    }
    // One stop step for each of the warps that add.
    for (int i = 0; i < Tile::stages; ++i) {
      find({.what = Step::stop, .sums = Step::no_more});
      hand_over(0);
    }
  }
};

}  // namespace attune

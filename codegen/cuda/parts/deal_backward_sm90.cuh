// codegen/cuda/parts/deal_backward_sm90.cuh — which keys a block of backward_sm90.cuh works on and which queries it
// visits for them: its shared memory, the order of items, and the warp that deals and loads them
#pragma once

#include "codegen/cuda/contract/cover_args.cuh"
#include "codegen/cuda/contract/gradient.cuh"
#include "codegen/cuda/layout/section.cuh"
#include "codegen/cuda/parts/deal_sm90.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// A tile of queries that an item of keys visits. Items without one have a step of their own.
struct Step {
  static constexpr int first = 1, last = 2;  ///< of its item
  static constexpr int whole = 4;            ///< nothing of it is removed
  static constexpr int empty = 8;            ///< no queries: the item has none
  static constexpr int stop = 16;            ///< there are no more items
  static constexpr int falls = 32;  ///< its item visits queries from the last on; said where diagonals are summed
  int what, queries, b, h;
  int keys, kv_head;
  int sums;  ///< which tile of all heads' queries; where there is none, what the warp that adds does
  int turn;  ///< tiles of keys that are added to these queries before this one
  static constexpr int nothing = -1, no_more = -2;  ///< in place of sums
};
constexpr int step_words = sizeof(Step) / 4;
/// Steps outlive their stages: groups read where results belong after they let go of the last one, and the warp that
/// adds is behind. It is less than six steps behind the warp that loads, since stages of queries and of sums lie
/// between them.
constexpr int steps_kept = 8;

template <class Tile>
struct Shared90Backward {
  static constexpr int chunk = chunk_columns<typename Tile::Element>, m = Tile::m, n = Tile::n, stages = Tile::stages;
  static constexpr int d_chunks = (Tile::d + chunk - 1) / chunk, dv_chunks = (Tile::dv + chunk - 1) / chunk;
  static constexpr int k_bytes = d_chunks * n * chunk_bytes, v_bytes = dv_chunks * n * chunk_bytes;
  static constexpr int q_bytes = d_chunks * m * chunk_bytes, grad_o_bytes = dv_chunks * m * chunk_bytes;
  static constexpr int ds_bytes = n / chunk * m * chunk_bytes, sum_bytes = 4 * m * d_chunks * chunk;
  static constexpr int k = 0, v = k + k_bytes, q = v + v_bytes, grad_o = q + stages * q_bytes,
                       ds = grad_o + stages * grad_o_bytes, sums = ds + stages * ds_bytes,
                       under = sums + stages * sum_bytes, delta = under + 4 * m * stages,
                       steps = delta + 4 * m * stages;
  // A barrier for each step that is kept: its words are there. Two for each stage: full, then empty.
  static constexpr int known = steps + 4 * step_words * steps_kept, full = known + 8 * steps_kept,
                       sum_full = full + 16 * stages, k_full = sum_full + 16 * stages, v_full = k_full + 8,
                       keys_empty = v_full + 8;
  // For the warp that sums diagonals: full and empty for each buffer of dS.
  static constexpr int ds_full = keys_empty + 8, bytes = ds_full + 16 * stages;
  // Each of two groups holds 64 x 64 of dq: half of the width, or half of the queries.
  static_assert(m * d_chunks == 128 && n == 128);
};

/// Where a word of the nth step is, by its member's place in Step.
template <class Tile>
__device__ inline unsigned step_word(unsigned shared, unsigned nth, int word) {
  return shared + Shared90Backward<Tile>::steps + 4 * (nth % steps_kept * step_words + word);
}

// ---- items -------------------------------------------------------------------------------------------------------

/// Where the sums of a head's first tile of queries of sequence b are.
template <class Tile>
__device__ inline int sums_of(const BackwardArgs& args, int b, int h) {
  if constexpr (is_packed<Tile>) return h * args.q_places + place_of<Tile::m>(args.q_starts, b);
  return (b * args.q_heads + h) * args.q_places;
}

/// A tile of keys of a key head, for all batch entries that share it: an item of that head's set. Sets are dealt in
/// sections, whose nth items follow one another: a tile of queries passes from one item of a set to the next in some 2
/// us, so items of a set must not start in faster succession than that. Sections alternate: in even ones
/// keys fall and queries rise, in odd ones the other way round. Where a mask makes items longer towards one end, what
/// ends late in one section is short in the next, and blocks visit the same queries one after another. If the last
/// section has no partner, it starts with the longest items of a causal mask. A block waits only for items dealt before
/// its own, so nothing deadlocks, whatever the number of blocks.
template <class Tile>
struct Items90Backward {
  const BackwardArgs& args;
  int per_section;  ///< sets

  struct Item {
    int b, kv_head;
    int keys;     ///< the tile; a packed sequence may have fewer
    bool rising;  ///< the order in which items of this set are dealt; queries are visited the other way round
  };

  /// How many tiles a set has. A packed call has all its sequences in each set, side by side.
  __device__ int tiles() const { return args.kv_places; }
  __device__ int sets() const { return args.kv_shared || is_packed<Tile> ? args.kv_heads : args.kv_heads * args.batch; }
  __device__ int count() const { return sets() * tiles(); }
  __device__ Item item(int index) const {
    const int section = index / (per_section * tiles()), first = section * per_section,
              here = min(per_section, sets() - first), within = index - first * tiles(), nth = within / here,
              set = first + within - nth * here;
    const bool rising = (section & 1) || first + here == sets();
    const int keys = rising ? nth : tiles() - 1 - nth;
    if constexpr (is_packed<Tile>) {
      const int b = sequence_at<Tile::n>(args.kv_starts, args.batch, keys);
      return {b, set, keys - place_of<Tile::n>(args.kv_starts, b), rising};
    }
    return {set / args.kv_heads, set % args.kv_heads, keys, rising};
  }
};

// ---- the warp that loads -----------------------------------------------------------------------------------------

template <class Tile, class User>
struct Loader90Backward {
  using Shared = Shared90Backward<Tile>;
  static constexpr int m = Tile::m, n = Tile::n, rows = m / 32;

  const BackwardArgs& args;
  const User& user;
  unsigned shared;
  int lane;
  unsigned count = 0, keys_phase = 0;  ///< count: of steps
  int word =
      0;  ///< of the step that was found last, a word a lane: what follows it decides whether it is its item's last
  RowEnd ends[rows];

  /// The ends of this lane's rows are read long before the stage is free.
  __device__ void find(const Step& step) {
    word = lane == 0   ? step.what
           : lane == 1 ? step.queries
           : lane == 2 ? step.b
           : lane == 3 ? step.h
           : lane == 4 ? step.keys
           : lane == 5 ? step.kv_head
           : lane == 6 ? step.sums
                       : step.turn;
    if (step.what & (Step::empty | Step::stop)) return;
    const Stretch queries = stretch<Tile>(args.q_starts, step.b, args.q_len);
    const Where where{step.b, step.h, queries.length, stretch<Tile>(args.kv_starts, step.b, args.kv_len).length};
    const Int origin = args.q_offset + step.queries * m;
    const auto head = user.head(where);
#pragma unroll
    for (int j = 0; j < rows; ++j) {
      const int q = step.queries * m + 32 * j + lane;
      ends[j] = no_row();
      if (q >= queries.length) continue;
      const auto of = [&](const Rows& all) {
        return __ldg(all.data + step.b * all.batch + step.h * all.head + (queries.start + q) * all.position);
      };
      const Int q_at = args.q_offset + q;
      ends[j] = row_end(of(args.lse), user.rest(head, user.row(head, where, q_at), where, origin, q_at),
                        of(args.delta));
    }
  }

  __device__ void hand_over(int more) {
    if (lane == 0) word |= more;
    const int what = uniform(word), stage = static_cast<int>(count & 1);
    static_assert(Tile::stages == 2);
    const unsigned full = shared + Shared::full + 16 * stage;
    const bool loads = !(what & (Step::empty | Step::stop));
    barrier_wait(full + 8, (count >> 1 & 1) ^ 1);
    if (loads)
#pragma unroll
      for (int j = 0; j < rows; ++j) {
        const unsigned to = 4 * (stage * m + 32 * j + lane);
        shared_put(shared + Shared::under + to, __float_as_int(ends[j].under));
        shared_put(shared + Shared::delta + to, __float_as_int(ends[j].delta));
      }
    if (lane < step_words) shared_put(step_word<Tile>(shared, count, lane), word);
    __syncwarp();
    if (lane == 0) barrier_arrive(shared + Shared::known + 8 * (count % steps_kept));
    ++count;
    const int queries = __shfl_sync(~0u, word, 1), b = __shfl_sync(~0u, word, 2), h = __shfl_sync(~0u, word, 3),
              keys = __shfl_sync(~0u, word, 4), kv_head = __shfl_sync(~0u, word, 5);
    if (lane == 0) {
      // Items without a step have their turn in its phases.
      if (what & Step::empty) barrier_wait(shared + Shared::keys_empty, keys_phase ^ 1);
      if (loads) {
        const int q_batch = is_packed<Tile> ? 0 : b,
                  q_first = stretch<Tile>(args.q_starts, b, args.q_len).start + queries * m;
        barrier_expect(full, Shared::q_bytes + Shared::grad_o_bytes);
        load(Shared::q + stage * Shared::q_bytes, args.q_map, full, Shared::d_chunks, m, q_first, h, q_batch);
        load(Shared::grad_o + stage * Shared::grad_o_bytes, args.grad_o_map, full, Shared::dv_chunks, m, q_first, h,
             q_batch);
        if (what & Step::first) {
          const int kv_batch = is_packed<Tile> || args.kv_shared ? 0 : b,
                    kv_first = stretch<Tile>(args.kv_starts, b, args.kv_len).start + keys * n;
          barrier_wait(shared + Shared::keys_empty, keys_phase ^ 1);
          barrier_expect(shared + Shared::k_full, Shared::k_bytes);
          load(Shared::k, args.k_map, shared + Shared::k_full, Shared::d_chunks, n, kv_first, kv_head, kv_batch);
          barrier_expect(shared + Shared::v_full, Shared::v_bytes);
          load(Shared::v, args.v_map, shared + Shared::v_full, Shared::dv_chunks, n, kv_first, kv_head, kv_batch);
        }
      } else {
        barrier_arrive(full);
      }
    }
    __syncwarp();
    if (what & (Step::first | Step::empty)) keys_phase ^= 1;
  }
  __device__ void load(int into, const TensorMap& map, unsigned barrier, int chunks, int lines, int first, int head,
                       int batch) const {
    for (int c = 0; c < chunks; ++c)
      load_box(shared + into + c * lines * chunk_bytes, map, barrier, c * Shared::chunk, first, head, batch);
  }

  /// Tiles of keys that bands leave.
  static __device__ int first_of(const Bands& bands) { return max(bands.begin, 0) / n; }
  static __device__ int end_of(const Bands& bands, Where at) { return (min(bands.end, at.kv_len) + n - 1) / n; }

  /// Sets of a section: args.section, or more where items are short, because they then start in faster succession. How
  /// many steps an item has is told by a table, or by bands of 32 tiles, a lane each: in all heads, and along the
  /// queries or in the middle of some sequences. All blocks count alike.
  __device__ int sets_of_section() const {
    float visits = 0, keys = 0;
    if constexpr (User::traits.listed) {
      visits = static_cast<float>(*args.visited);
      keys = static_cast<float>(args.tile_heads) *
             (is_packed<Tile> ? args.kv_places : args.tile_batches * ((args.kv_len + n - 1) / n));
    } else {
      const int b = lane * args.batch / 32;
      const Where at{b, lane % args.q_heads, stretch<Tile>(args.q_starts, b, args.q_len).length,
                     stretch<Tile>(args.kv_starts, b, args.kv_len).length};
      const int tiles = (at.q_len + m - 1) / m, tile = is_packed<Tile> ? tiles / 2 : lane * tiles / 32;
      const int begin = tile * m, end = min(begin + m, at.q_len);
      if (begin < end) {
        const Bands bands = user.bands(user.head(at), at, args.q_offset + begin, args.q_offset + end);
        visits = static_cast<float>(max(end_of(bands, at) - first_of(bands), 0)) * tiles;
      }
      keys = static_cast<float>((at.kv_len + n - 1) / n);
#pragma unroll
      for (int i = 16; i > 0; i /= 2) {
        visits += __shfl_xor_sync(~0u, visits, i);
        keys += __shfl_xor_sync(~0u, keys, i);
      }
    }
    const float steps = visits * (args.kv_shared ? args.group * args.batch : args.group);
    // That many steps are what a tile needs to pass on, times the blocks of a large card.
    constexpr float apart = items_apart(m, false);
    return max(args.section, static_cast<int>(min(apart * keys / max(steps, 1.0f), 4096.0f)));
  }

  /// What a tile of queries and a tile of keys share: -1 if the queries do not visit the keys, else twice the turn,
  /// plus 1 where no pair is removed. `falls`: keys are dealt rising.
  __device__ int meeting(Where at, int tile, int keys, bool falls) const {
    const int tiles = (at.q_len + m - 1) / m, begin = tile * m, end = min(begin + m, at.q_len);
    if (tile >= tiles) return -1;
    if constexpr (User::traits.listed) {
      const int head = (args.tile_batches == 1 ? 0 : at.b) * args.tile_heads + (args.tile_heads == 1 ? 0 : at.h),
                row = head * ((args.kv_len + n - 1) / n) + keys;
      const auto visit = static_cast<unsigned>(
          __ldg(args.tiles + static_cast<long long>(row) * args.tile_stride + tile));
      if (visit == 0) return -1;
      const unsigned turn = falls ? visit >> Visit::below_at & (Visit::most_tiles - 1) : visit >> Visit::above_at;
      return static_cast<int>(2 * turn) + (end - begin == m && (visit & Visit::whole));
    }
    const Bands bands = user.bands(user.head(at), at, args.q_offset + begin, args.q_offset + end);
    const int from = first_of(bands), to = end_of(bands, at), kv = keys * n;
    if (keys < from || keys >= to) return -1;
    const bool whole = end - begin == m && bands.full_begin <= kv && kv + n <= min(bands.full_end, at.kv_len);
    return 2 * (falls ? keys - from : to - 1 - keys) + whole;
  }

  /// Which tiles of queries visit these keys is the forward's answer, from bands or from a table: that of each of 32
  /// tiles, a tile a lane. Queries count the tiles of keys that they visit alike, so their turns miss none.
  __device__ void run() {
    // Ends of rows and tables come from kernels before; that others of the block need not wait, this warp's steps see
    // to.
    wait_for_kernel_before();
    const Items90Backward<Tile> items{args, sets_of_section()};
    const int all_tiles = (args.q_len + m - 1) / m;
    int index = static_cast<int>(blockIdx.x);
    // Drawn as an item ends. A block that draws its next item early keeps others waiting for the turns of that.
    const auto next_item = [&] {
      int next = 0;
      if (lane == 0) next = static_cast<int>(gridDim.x + atomicAdd(args.next, 1u));
      index = uniform(next);
    };
#pragma unroll 1
    while (index < items.count()) {
      // What an item is lies in lanes, a number each: this warp has few registers.
      constexpr int keys = 0, kv_head = 1, of_b = 2, rising = 3, now_b = 4, now_h = 5;
      int held = 0;
      const auto put = [&](int at, int x) { held = lane == at ? x : held; };
      const auto get = [&](int at) { return __shfl_sync(~0u, held, at); };
      {
        const auto item = items.item(index);
        if constexpr (is_packed<Tile>)
          if (item.keys * n >= stretch<Tile>(args.kv_starts, item.b, args.kv_len).length) {
            next_item();
            continue;
          }
        put(keys, item.keys);
        put(kv_head, item.kv_head);
        put(of_b, item.b);
        put(rising, item.rising);
      }
      bool found = false;
#pragma unroll 1
      for (int g = 0; g < (args.kv_shared ? args.group * args.batch : args.group); ++g) {
        put(now_b, args.kv_shared ? g / args.group : get(of_b));
        put(now_h, get(kv_head) * args.group + g % args.group);
#pragma unroll 1
        for (int i = 0; i < all_tiles; i += 32) {
          const bool falls = get(rising);
          const int base = falls ? (all_tiles - 1) / 32 * 32 - i : i;
          int met;
          {
            const int b = get(now_b);
            const Where where{b, get(now_h), stretch<Tile>(args.q_starts, b, args.q_len).length,
                              stretch<Tile>(args.kv_starts, b, args.kv_len).length};
            met = meeting(where, base + lane, get(keys), falls);
          }
          unsigned left = __ballot_sync(~0u, met >= 0);
#pragma unroll 1
          while (left) {
            const int nth = falls ? 31 - __clz(static_cast<int>(left)) : __ffs(static_cast<int>(left)) - 1;
            left ^= 1u << nth;
            if (found) hand_over(0);
            const int meets = __shfl_sync(~0u, met, nth), b = get(now_b), h = get(now_h);
            const bool says_falls = User::gradient.by_diagonal > 0 && falls;
            find({.what = (found ? 0 : Step::first) | (meets & 1 ? Step::whole : 0) | (says_falls ? Step::falls : 0),
                  .queries = base + nth,
                  .b = b,
                  .h = h,
                  .keys = get(keys),
                  .kv_head = get(kv_head),
                  .sums = sums_of<Tile>(args, b, h) + base + nth,
                  .turn = meets >> 1});
            found = true;
          }
        }
      }
      if (!found)
        find({.what = Step::empty,
              .queries = 0,
              .b = get(of_b),
              .h = 0,
              .keys = get(keys),
              .kv_head = get(kv_head),
              .sums = Step::nothing,
              .turn = 0});
      hand_over(Step::last);
      next_item();
    }
    // A step that stops for each of the warps that add.
    for (int i = 0; i < Tile::stages; ++i) {
      find({.what = Step::stop,
            .queries = 0,
            .b = 0,
            .h = 0,
            .keys = 0,
            .kv_head = 0,
            .sums = Step::no_more,
            .turn = 0});
      hand_over(0);
    }
  }
};

}  // namespace attune

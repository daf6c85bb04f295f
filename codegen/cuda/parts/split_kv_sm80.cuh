// codegen/cuda/parts/split_kv_sm80.cuh — split-KV: which keys a block of decode_sm80.cuh works on: equal shares of all
// keys
//
// There is no planning step: each block computes its share of the keys on the device, from the lengths and the mask. A
// tile of queries is split where a block's share ends. Each block of a split tile increments a counter once it has
// written its part; the last one combines the parts in the order of keys, so that bits do not depend on timing.
#pragma once

#include "codegen/cuda/contract/schedule.cuh"
#include "codegen/cuda/parts/entry.cuh"

namespace attune {

/// The queries of an entry that share keys: those of a set of heads.
struct DecodeTile : Entry {
  int b, kv_head;
  Heads heads;

  __device__ Where at(int head) const { return Entry::at(b, head); }

  /// Split ranges are per block.
  __device__ static int workers() { return static_cast<int>(gridDim.x); }
  __device__ static int worker() { return static_cast<int>(blockIdx.x); }

  template <class Tile>
  __device__ static DecodeTile of(const DecodeArgs& args, int tile) {
    // A division takes some sixty cycles, and most key heads have one set.
    const int b = tile / args.sets, set = tile - b * args.sets, of_group = args.sets_of_group,
              kv_head = of_group == 1 ? set : set / of_group, before = (set - kv_head * of_group) * Tile::heads;
    return {entry_of<Tile, true>(args, b),
            b,
            kv_head,
            {kv_head * args.group + before, min(args.group - before, Tile::heads)}};
  }
  /// The tiles of keys that the queries visit.
  template <class Tile, class User>
  __device__ Walk walk(const DecodeArgs& args, const User& user) const {
    const Where where = at(heads.first);
    return walk_of<Tile>(args, user, *this, where, user.head(where), {0, queries.length, 0, 1});
  }
};

/// A place between two steps of a tile's walk.
struct Cut {
  int tile, step;
  /// True if steps remain from here to this end of a share.
  __device__ bool is_before(const Cut& end) const { return tile < end.tile || (tile == end.tile && step < end.step); }
};
/// The blocks that share a tile: `count` of them, from `first` on. With a fixed split size: the tile, and its number of
/// splits.
struct SplitTile {
  int first, count;
};
/// What a block works on, and which blocks share the tiles that it begins and ends in.
struct SplitRange {
  Cut begin, end;
  SplitTile at_begin, at_end;
};

/// Memory in which all threads of a block find its share.
template <int Threads>
struct SplitScratch {
  long long before[Threads];  ///< cost of the tiles before each thread's first one
  long long warp_sum[Threads / 32];
  int warp_least[Threads / 32], warp_most[Threads / 32];
  SplitRange split;
};

/// `things` consecutive things, divided evenly among `among`.
struct Even {
  int each, more;

  __device__ Even(int things, int among) : each(things / among), more(things - each * among) {}
  __device__ int before(int nth) const { return nth * each + min(nth, more); }
};

/// Steps that stay together: tiles are split only at multiples of this.
template <class Tile>
__device__ inline int together(const DecodeArgs& args) {
  if constexpr (has_fixed_split<Tile>)
    return further(args).split_steps;
  else
    return 1;
}

/// The shares of all blocks. A tile costs one unit per step, plus `overhead`.
struct SplitRanges {
  static constexpr int overhead = 2;
  static constexpr int least = least_steps;

  int tiles, blocks, together;

  /// Splits tiles of `steps` steps each with equal_parts. False if equal_parts does not split them.
  template <class Of>
  __device__ bool equal(int steps, SplitRange& out) const {
    const int parts = equal_parts(tiles, blocks, steps, together);
    if (parts == 0) return false;
    const int count = (steps + together - 1) / together, items = tiles * parts, used = min(blocks, items);
    const int me = Of::worker();
    const Even items_of(items, used), steps_of(count, parts);
    const auto cut = [&](int block) {
      const int item = items_of.before(block), tile = parts == 1 ? item : item / parts;
      return Cut{tile, steps_of.before(item - tile * parts) * together};
    };
    out.begin = cut(min(me, used));
    out.end = cut(min(me + 1, used));
    out.at_begin = {out.begin.tile * parts, parts};
    out.at_end = {out.end.tile * parts, parts};
    return true;
  }
};

/// Divides the cost of all tiles, in order, into equal ranges.
struct EqualRanges {
  long long total;
  int blocks;

  __device__ long long place(int block) const { return total * block / blocks; }
  /// The step of a tile at this cost within it, rounded to the tile's first or last step if that is near.
  __device__ static int step(long long cost, int steps, int together = 1) {
    const int at = cost < steps ? static_cast<int>(cost) : steps;
    return at < SplitRanges::least ? 0 : at > steps - SplitRanges::least ? steps : at / together * together;
  }
  /// The blocks that share a tile with cost `before` ahead of it. Not used with a fixed split size.
  __device__ SplitTile split_tile(long long before, int steps) const {
    const auto first_from = [&](long long cost) { return static_cast<int>((cost * blocks + total - 1) / total); };
    int first = first_from(before), last = first_from(before + steps + SplitRanges::overhead) - 1;
    while (step(place(first) - before, steps) == 0) ++first;
    while (step(place(last) - before, steps) == steps) --last;
    return {first - 1, last - first + 2};
  }
};

/// All threads of a block find its share. `scratch` may be used again after another barrier. `Of`: the tiles, and the
/// blocks or clusters that share them. Calls `before_reading` before it reads memory, if it does.
template <class Tile, class Of = DecodeTile, class User, int Threads, class Fn>
__device__ inline SplitRange find_split(const DecodeArgs& args, const User& user, SplitScratch<Threads>& scratch,
                                        const Fn& before_reading) {
  const SplitRanges splits{args.batch * args.sets, Of::workers(), together<Tile>(args)};
  SplitRange out;
  if (!User::traits.skips && !is_packed<Tile> && !args.kv_lens.at &&
      splits.template equal<Of>((args.kv_len + Tile::n - 1) / Tile::n, out))
    return out;
  before_reading();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int each = (splits.tiles + Threads - 1) / Threads, first = min(thread * each, splits.tiles),
            last = min(first + each, splits.tiles);
  const auto steps_of = [&](int tile) {
    return Of::template of<Tile>(args, tile).template walk<Tile>(args, user).count;
  };
  long long sum = 0;
  int least = 0x7fffffff, most = 0;
  for (int tile = first; tile < last; ++tile) {
    const int steps = steps_of(tile);
    sum += steps + SplitRanges::overhead;
    least = min(least, steps);
    most = max(most, steps);
  }
  long long up_to = sum;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const long long other = __shfl_up_sync(~0u, up_to, by);
    if (lane >= by) up_to += other;
  }
  least = __reduce_min_sync(~0u, least);
  most = __reduce_max_sync(~0u, most);
  if (lane == 31) {
    scratch.warp_sum[warp] = up_to;
    scratch.warp_least[warp] = least;
    scratch.warp_most[warp] = most;
  }
  __syncthreads();
  long long before = up_to - sum, total = 0;
#pragma unroll
  for (int i = 0; i < Threads / 32; ++i) {
    if (i < warp) before += scratch.warp_sum[i];
    total += scratch.warp_sum[i];
    least = min(least, scratch.warp_least[i]);
    most = max(most, scratch.warp_most[i]);
  }
  if (least == most && splits.template equal<Of>(least, out)) return out;

  const long long most_blocks = total / (2 * SplitRanges::least + SplitRanges::overhead);
  const EqualRanges ranges{total, most_blocks < splits.blocks ? max(static_cast<int>(most_blocks), 1) : splits.blocks};
  // The thread that has the tile of one of the two ends finds that end.
  const int me = Of::worker();
#pragma unroll 1
  for (int end = 0; end < 2; ++end) {
    const int block = min(me + end, ranges.blocks);
    const long long place = ranges.place(block);
    Cut cut{splits.tiles, 0};
    SplitTile split_tile{};
    if (block == ranges.blocks ? thread == 0 : place >= before && place < before + sum) {
      if (block < ranges.blocks) {
        long long at = before;
        int tile = first, steps = steps_of(tile);
        for (; place >= at + steps + SplitRanges::overhead; steps = steps_of(++tile))
          at += steps + SplitRanges::overhead;
        const int step = EqualRanges::step(place - at, steps, splits.together);
        cut = step == steps && steps > 0 ? Cut{tile + 1, 0} : Cut{tile, step};
        if (!has_fixed_split<Tile> && cut.step > 0) split_tile = ranges.split_tile(at, steps);
      }
      (end ? scratch.split.end : scratch.split.begin) = cut;
      (end ? scratch.split.at_end : scratch.split.at_begin) = split_tile;
    }
  }
  __syncthreads();
  return scratch.split;
}

}  // namespace attune

// codegen/cuda/kernels/latent_sm90.cuh — the forward of latent heads on Hopper: values are the first columns of the
// keys
//
// A block has 64 rows: queries times the heads that share keys. Keys come in tiles of 64, each loaded once: tile after
// tile goes to one of two stages, and each of two groups of four warps computes the scores of every other tile. Results
// are divided by columns: each group has half of the columns of all rows, 128 numbers a thread at 512 columns, and
// multiplies the probabilities of both tiles, the other group's from shared memory, with its half of the values. Were
// the scores of a tile divided by keys instead, products of 32 columns would each read all of q: 92 % of what the
// tensor cores can do became 74 %.
//
// One matrix of probabilities is in shared memory at a time: who has read the other group's writes the next. The rows'
// maxima go with it. They are raised only when powers would pass 2^slack.
//
// Neighbours among blocks, a cluster, have other rows of the same keys at the same time: the cache has what one of them
// has loaded. Clusters stay, and take equal shares of all keys (cuts_sm80.cuh); parts of tiles are added up by
// join_latent_sm90.cuh behind.
//
// What is removed reaches nothing: rows behind the last key are cleared in shared memory. Rows with results that are
// not finite although their sum is are computed once more, pair by pair.
//
// Tile: Element (bf16, f16) of q and k, Out (also float) of o; m and n: 64; d, dv: multiples of 64 and of 256, dv at
// most 512 and d; heads: that share a tile, 1 to 64; cluster: blocks that read the same keys, 1 or 2; box: keys of a
// box, a divisor of 64 and of a page's rows, at least 8; turns: 0: scores begin as soon as keys are there; 1: those of
// the second group when those of the first are there; 2: when the second group has multiplied the first's
// probabilities; 3: as 2, and each group's own probabilities are multiplied when the other's next scores are there;
// layout, max, store, before, paged: as the kernel of few queries
// has them. SharedLatent<Tile>::bytes of shared memory and 1024 to align it, 384 threads.
#pragma once

#include "codegen/cuda/layout/latent_sm90.cuh"
#include "codegen/cuda/parts/group_sm90.cuh"
#include "codegen/cuda/parts/latent_rows_sm90.cuh"
#include "codegen/cuda/parts/softmax_sm80.cuh"

namespace attune {

// ---- shared memory -----------------------------------------------------------------------------------------------

/// Where each thing is, as layout/ places it.
template <class Tile>
struct SharedLatent {
  static constexpr LatentLayout90 at{.m = Tile::m,
                                     .n = Tile::n,
                                     .d = Tile::d,
                                     .dv = Tile::dv,
                                     .stages = Tile::stages,
                                     .element = ElementOf<typename Tile::Element>::bytes};
  static constexpr int chunk = at.chunk, chunks = at.chunks, v_chunks = at.v_chunks, half_chunks = at.half_chunks,
                       chunk_size = at.chunk_size, stage_bytes = at.stage_bytes, q = at.q, keys = at.keys, p = at.p,
                       tops = at.tops, sums = at.sums, share = at.share, q_full = at.q_full, q_empty = at.q_empty,
                       stage_barriers = at.stage_barriers, of_stage = at.of_stage, q_bytes = at.q_bytes,
                       p_bytes = at.p_bytes, row_numbers = at.row_numbers, bytes = at.bytes;
  static_assert(at.share_bytes == sizeof(Share));
  static constexpr int used_rest = 2;

  static __device__ unsigned full(unsigned shared, int stage, int chunk) {
    return shared + stage_barriers + stage * of_stage + 8 * chunk;
  }
  static __device__ unsigned used(unsigned shared, int stage, int what) {
    return shared + stage_barriers + stage * of_stage + 8 * (chunks + what);
  }
  /// The chunks of a group's stage in the order in which they become free: no values, then both halves.
  static __device__ constexpr int nth_chunk(int group, int nth) {
    constexpr int rest = chunks - v_chunks;
    if (nth < rest) return v_chunks + nth;
    const int of_values = nth - rest;
    return group == (Tile::turns == 3) ? of_values : (of_values + half_chunks) % v_chunks;
  }
  static __device__ constexpr int user_of(int chunk) { return chunk >= v_chunks ? used_rest : chunk / half_chunks; }
};

constexpr int latent_threads = 384;
/// Each group has every other stage: a Place counts pairs of them.
template <class Tile>
using LatentPlace = Place<Tile::stages / 2>;
/// Which of its cluster a block is.
template <class Tile>
__device__ inline int cluster_rank() {
  if constexpr (Tile::cluster == 1) return 0;
  return static_cast<int>(blockIdx.x) % Tile::cluster;
}

// ---- which steps -------------------------------------------------------------------------------------------------

/// A tile of a share, and the steps of its walk that the share has: pairs of tiles of keys, one for each group.
template <class Tile, class User>
struct LatentItem {
  LatentTile<Tile> of;
  Walk walk;
  int begin, end, pairs;

  __device__ LatentItem(const LatentArgs& args, const User& user, const Share& share, int tile)
      : of(LatentTile<Tile>::template of<Tile>(args, tile)), walk(of.template walk<Tile>(args, user)) {
    begin = tile == share.begin.tile ? share.begin.step : 0;
    end = tile == share.end.tile ? share.end.step : walk.count;
    pairs = (end - begin + 1) / 2;
  }
  __device__ bool whole() const { return begin == 0 && end == walk.count; }
};
__device__ inline bool has_tile(const Share& share, int tile) {
  return tile < share.end.tile || (tile == share.end.tile && share.end.step > 0);
}

// ---- loading -----------------------------------------------------------------------------------------------------

/// A thread loads one group's tiles, and that of the first group the queries too.
template <int Group, class Tile, class User>
__device__ inline void load_latent(const LatentArgs& args, const User& user, const Share& share, unsigned shared) {
  using Shared = SharedLatent<Tile>;
  constexpr int boxes = Tile::n / Tile::box;
  static_assert(boxes * Tile::box == Tile::n && Tile::box % 8 == 0);
  LatentPlace<Tile> place;
  unsigned q_phase = 1;
#pragma unroll 1
  for (int tile = share.begin.tile; has_tile(share, tile); ++tile) {
    const LatentItem<Tile, User> item(args, user, share, tile);
    const LatentTile<Tile>& of = item.of;
    // Queries come with every tile, so that their barrier's phase is known by the tile alone.
    if constexpr (Group == 0) {
      barrier_wait(shared + Shared::q_empty, q_phase);
      q_phase ^= 1;
      const LatentRows<Tile, User> rows(args, user, of, cluster_rank<Tile>());
      const unsigned full = shared + Shared::q_full;
      const int position = of.queries.start + rows.first_query, batch = is_packed<Tile> && args.q_starts ? 0 : of.b,
                head = rows.first_head % of.group;
      barrier_expect(full, Shared::q_bytes);
#pragma unroll
      for (int nth = 0; nth < Shared::chunks; ++nth) {
        const int c = Shared::nth_chunk(Group, nth);
        const unsigned into = shared + Shared::q + c * Tile::m * chunk_bytes;
        if constexpr (Tile::heads == 1)
          load_box(into, args.q_map, full, c * Shared::chunk, position, rows.first_head, batch);
        else
          load_box_of_heads(into, args.q_map, full, c * Shared::chunk, head, position, of.kv_head, batch);
      }
    }
    const int* const pages = Tile::paged ? args.pages.at + of.b * args.pages.entry : nullptr;
    const int entry = args.kv_shared || (is_packed<Tile> && args.kv_starts) ? 0 : of.b;
    // Where the boxes of a step lie, found a step ahead. What does not exist lies before all there is, and is 0.
    int position[boxes], batch[boxes];
    const auto look_up = [&](int step) {
      const int first = step < item.end ? item.walk.tile(step) * Tile::n : of.keys.length;
#pragma unroll
      for (int i = 0; i < boxes; ++i) {
        const int row = first + i * Tile::box;
        const bool there = row < of.keys.length;
        if constexpr (Tile::paged) {
          const int nth = row / args.pages.rows, page = there ? pages[nth * args.pages.nth] : -1;
          position[i] = row - nth * args.pages.rows;
          batch[i] = page;
        } else {
          position[i] = of.keys.start + row;
          batch[i] = there ? entry : -1;
        }
      }
    };
    look_up(item.begin + Group);
#pragma unroll 1
    for (int step = item.begin + Group; step < item.begin + 2 * item.pairs; step += 2) {
      int position_now[boxes], batch_now[boxes];
#pragma unroll
      for (int i = 0; i < boxes; ++i) {
        position_now[i] = position[i];
        batch_now[i] = !Tile::paged || batch[i] < args.pages.count ? batch[i] : -1;
      }
      look_up(step + 2);
      const int stage = 2 * place.stage + Group;
#pragma unroll
      for (int nth = 0; nth < Shared::chunks; ++nth) {
        const int c = Shared::nth_chunk(Group, nth), user_of = Shared::user_of(c);
        const unsigned full = Shared::full(shared, stage, c);
        if (nth == 0 || user_of != Shared::user_of(Shared::nth_chunk(Group, nth - 1)))
          barrier_wait(Shared::used(shared, stage, user_of), place.phase ^ 1);
        barrier_expect(full, Shared::chunk_size);
#pragma unroll
        for (int i = 0; i < boxes; ++i)
          load_box(shared + Shared::keys + stage * Shared::stage_bytes + c * Shared::chunk_size +
                       i * Tile::box * chunk_bytes,
                   args.k_map, full, c * Shared::chunk, position_now[i], of.kv_head, batch_now[i]);
      }
      place.next();
    }
  }
}

// ---- computing ---------------------------------------------------------------------------------------------------

/// What waits at the block's named barriers; each group's probabilities have one from `probabilities` on.
enum LatentBarrier { all_groups = 1, scores_done, probabilities = scores_done + 2, one_group = probabilities + 2 };

/// A thread of a group while it has a tile of queries. Thread t of the group holds row t / 4 % 8 + 16 (t / 32) and the
/// row 8 below.
template <class Tile, class User, int Group>
struct LatentGroup {
  using Element = typename Tile::Element;
  using Shared = SharedLatent<Tile>;
  using Rows = LatentRows<Tile, User>;
  static constexpr int n = Tile::n, columns = Tile::dv / 2;
  static constexpr bool running = !fixed_maximum<Tile, User>;
  static constexpr int slack = Tile::max ? 0 : 8;
  static_assert(Tile::m == 64 && n == 64 && Tile::stages % 2 == 0 && Tile::d % Shared::chunk == 0 &&
                Tile::dv % 256 == 0 && Tile::dv <= 512);
  static_assert(!User::traits.has_prob || User::traits.linear_prob);

  const LatentArgs& args;
  const unsigned shared;
  const LatentItem<Tile, User>& item;
  const int lane, warp, row;  ///< row: the thread's first
  Softmax80<User, running, 1, slack, Tile::heads> softmax;
  float s[n / 2], o[columns / 2];
  unsigned p[n / 4];

  __device__ LatentGroup(const LatentArgs& args, const User& user, unsigned shared, const LatentItem<Tile, User>& item)
      : LatentGroup(args, shared, item, Rows(args, user, item.of, cluster_rank<Tile>())) {}
  __device__ LatentGroup(const LatentArgs& args, unsigned shared, const LatentItem<Tile, User>& item, const Rows& rows)
      : args(args), shared(shared), item(item), lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32 % 4), row(16 * warp + lane / 4),
        softmax(rows.user, item.of.at(rows.head(row)), rows.query(row), item.of.q_offset, item.of.q_offset,
                rows.head(row + 8)) {
    for (float& x : o) x = 0;
  }

  __device__ unsigned keys(int stage, int chunk) const {
    return shared + Shared::keys + stage * Shared::stage_bytes + chunk * Shared::chunk_size;
  }
  __device__ void release(int stage, int what) const {
    __syncwarp();
    if (lane == 0) barrier_arrive(Shared::used(shared, stage, what));
  }

  __device__ static int stage(LatentPlace<Tile> place, int group) { return 2 * place.stage + group; }

  /// Issues the products of the queries with the keys of this group's stage, as these arrive.
  __device__ void scores(LatentPlace<Tile> place) {
    const int mine = stage(place, Group);
#pragma unroll
    for (int nth = 0; nth < Shared::chunks; ++nth) {
      const int c = Shared::nth_chunk(Group, nth);
      barrier_wait(Shared::full(shared, mine, c), place.phase);
      wgmma_fence();
      const unsigned long long a = descriptor(shared + Shared::q + c * Tile::m * chunk_bytes),
                               b = descriptor(keys(mine, c));
      if (nth == 0)
        Product<n, Element>::template set4<Major::k, Major::k>(s, a, b);
      else
        Product<n, Element>::template ss4<Major::k, Major::k>(s, a, b, 1);
    }
    wgmma_commit();
  }
  __device__ unsigned long long values(int stage) const {
    return descriptor(keys(stage, Group * Shared::half_chunks), Shared::chunk_size);
  }
  /// Adds the products of this group's probabilities with its half of the values in a stage.
  __device__ void add_own(int stage) {
    const unsigned long long v = values(stage);
    wgmma_fence();
    Product<columns, Element>::template rs4<Major::n>(o, p, v, 1);
    wgmma_commit();
  }
  /// The same with the other group's probabilities.
  __device__ void add_other(int stage) {
    const unsigned long long v = values(stage), theirs = descriptor(shared + Shared::p);
    wgmma_fence();
    Product<columns, Element>::template ss4<Major::k, Major::n>(o, theirs, v, 1);
    wgmma_commit();
  }

  /// Scores of a tile become probabilities. True if earlier results have to be multiplied by `lift`.
  __device__ bool weigh(int step, float (&lift)[1][2]) {
    // Where products are under way, the compiler would wait for them if these were the registers of scores.
    Fragment<1, n> x;
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      if constexpr (Group == 1 && Tile::turns < 2)
        x[0][i / 4][i % 4] = moved(s[i]);
      else
        x[0][i / 4][i % 4] = s[i];
    const int tile = step < item.end ? item.walk.tile(step) : (item.of.keys.length + n - 1) / n;
    const int key = tile * n, kv = item.of.kv_offset + key + 2 * (lane & 3);
    const bool partial = step >= item.end || !item.walk.is_full(step) || key + n > item.of.keys.length;
    if (partial)
      softmax.template exponents<true, n>(x, kv);
    else
      softmax.template exponents<false, n>(x, kv);
    const bool moved = softmax.template powers<n>(x, lift);
    if constexpr (User::traits.has_prob) softmax.template prob<n>(x, kv);
#pragma unroll
    for (int i = 0; i < n / 4; ++i) p[i] = pack<Element>(x[0][i / 2][i % 2 * 2], x[0][i / 2][i % 2 * 2 + 1]);
    return moved;
  }
  __device__ unsigned tops(int group) const { return shared + Shared::tops + group * Shared::row_numbers + 4 * row; }
  /// Hands this tile's probabilities to the other group.
  __device__ void hand_over() {
    const int line = lane & 15;
    const unsigned into = shared + Shared::p + (16 * warp + line) * chunk_bytes;
#pragma unroll
    for (int i = 0; i < n / 16; ++i)
      store_blocks(into + (((2 * i + (lane >> 4)) ^ (line & 7)) << 4), p[4 * i], p[4 * i + 1], p[4 * i + 2],
                   p[4 * i + 3]);
    if constexpr (running)
      if (lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) shared_put(tops(Group) + 32 * r, __float_as_int(softmax.top[0][r]));
    proxy_fence();
    named_arrive(LatentBarrier::probabilities + Group, 256);
  }
  __device__ void rescale(const float (&lift)[1][2]) {
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) o[i] *= lift[0][i / 2 % 2];
  }
  /// Waits for the other group's probabilities, and takes over the maxima that they are relative to.
  __device__ void take_over() {
    named_sync(LatentBarrier::probabilities + 1 - Group, 256);
    if constexpr (running) {
      float top[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) top[r] = __int_as_float(shared_get(tops(1 - Group) + 32 * r));
      if (!__any_sync(~0u, top[0] != softmax.top[0][0] || top[1] != softmax.top[0][1])) return;
      float lift[1][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float before = softmax.top[0][r] * softmax.factor(r);
        lift[0][r] = top[r] == -infinity ? 1.0f : power_of_two(before - top[r] * softmax.factor(r));
        softmax.top[0][r] = top[r];
        softmax.sum[0][r] *= lift[0][r];
      }
      rescale(lift);
    }
  }

  /// Clears this group's columns of rows behind the last key: they may hold NaN, and 0 times NaN is no 0.
  __device__ void clear_tail(int step, int stage) {
    const int key = step < item.end ? item.walk.tile(step) * n : 0, there = item.of.keys.length - key;
    if (step >= item.end || there >= n) return;
    constexpr int pieces = columns * 2 / 16;
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll 1
    for (int i = there * pieces + thread; i < n * pieces; i += 128) {
      const int piece = i % pieces;
      shared_put(keys(stage, Group * Shared::half_chunks + piece / 8) + i / pieces * chunk_bytes + piece % 8 * 16, 0u,
                 0u, 0u, 0u);
    }
    proxy_fence();
    named_sync(LatentBarrier::one_group + Group, 128);
  }
  /// This group's columns of the other's stage have arrived: the other group has seen it.
  __device__ void see_other(LatentPlace<Tile> place) const {
#pragma unroll
    for (int c = 0; c < Shared::half_chunks; ++c)
      barrier_wait(Shared::full(shared, stage(place, 1 - Group), Group * Shared::half_chunks + c), place.phase);
  }

  /// The other group's probabilities of step `step` times this group's columns of its values.
  __device__ void take(int step, LatentPlace<Tile> place) {
    const int theirs = stage(place, 1 - Group);
    take_over();
    see_other(place);
    clear_tail(step, theirs);
    pin(o);
    add_other(theirs);
  }
  /// This group's probabilities are handed over, and multiplied with its columns of their values.
  __device__ void give(int step, LatentPlace<Tile> place, bool moved, const float (&lift)[1][2], bool waits) {
    const int mine = stage(place, Group);
    hand_over();
    if (moved) rescale(lift);
    clear_tail(step, mine);
    if (waits) named_sync(LatentBarrier::scores_done + 1 - Group, 256);
    pin(o);
    add_own(mine);
    wgmma_wait<0>();
    pin(o);
    release(mine, Group);
  }
  __device__ void wait_for_scores(LatentPlace<Tile> place) {
    wgmma_wait<0>();
    pin(s);
    release(stage(place, Group), Shared::used_rest);
  }

  __device__ void run(LatentPlace<Tile>& place) {
    // Warps must agree on which products they issue, and the compiler know it.
    const int pairs = uniform(item.pairs);
    constexpr bool scores_first = Group == 0 || Tile::turns < 2;
    const auto begin = [&](bool more) {
      if (!scores_first || !more) return;
      if constexpr (Group == 1 && Tile::turns == 1) named_sync(LatentBarrier::scores_done, 256);
      scores(place);
    };
    pin(o);
    begin(true);
#pragma unroll 1
    for (int i = 0; i < pairs; ++i) {
      const int step = item.begin + 2 * i + Group, other = item.begin + 2 * i + 1 - Group;
      float lift[1][2];
      if constexpr (Group == 0) {
        wait_for_scores(place);
        if (Tile::turns == 1 || (Tile::turns == 3 && i > 0)) named_arrive(LatentBarrier::scores_done, 256);
        const bool moved = weigh(step, lift);
        give(step, place, moved, lift, Tile::turns == 3);
        take(other, place);
        wgmma_wait<0>();
        pin(o);
        release(stage(place, 1), Group);
      } else if constexpr (scores_first) {
        // Registers of results may not change while scores are under way.
        wait_for_scores(place);
        take(other, place);
        const bool moved = weigh(step, lift);
        wgmma_wait<0>();
        pin(o);
        release(stage(place, 0), Group);
        give(step, place, moved, lift, false);
      } else {
        take(other, place);
        wgmma_wait<0>();
        pin(o);
        release(stage(place, 0), Group);
        scores(place);
        wait_for_scores(place);
        if constexpr (Tile::turns == 3) named_arrive(LatentBarrier::scores_done + 1, 256);
        const bool moved = weigh(step, lift);
        give(step, place, moved, lift, Tile::turns == 3 && i + 1 < pairs);
      }
      place.next();
      begin(i + 1 < pairs);
    }
    // Nothing is under way any more; the compiler cannot know it.
    wgmma_wait<0>();
    pin(s);
    pin(o);
  }

  // ---- the end of a tile -----------------------------------------------------------------------------------------

  /// Both groups' sums of the thread's rows, added in the same order.
  __device__ void meet(int parity, int row, int lane, Part (&part)[2]) const {
    const auto at = [&](int group) {
      return shared + Shared::sums + (2 * parity + group) * Shared::row_numbers + 4 * row;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r] = softmax.part(0, r);
      if (lane % 4 == 0) shared_put(at(Group) + 32 * r, __float_as_int(part[r].sum));
    }
    named_sync(LatentBarrier::all_groups, 256);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      part[r].sum = __int_as_float(shared_get(at(0) + 32 * r)) + __int_as_float(shared_get(at(1) + 32 * r));
  }

  /// Stores results, or a part of them. What it needs to know of the tile is found anew: products leave no registers.
  __device__ void store(const LatentItem<Tile, User>& item, int parity, float* part_at) {
    int thread = static_cast<int>(threadIdx.x) % 128;
    pin(thread);
    const int lane = thread % 32, warp = thread / 32, row = 16 * warp + lane / 4;
    const Rows rows(args, softmax.user, item.of, cluster_rank<Tile>());
    Part part[2];
    meet(parity, row, lane, part);
    bool odd[2];
    typename Rows::Factors by[2] = {};
    float before[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) before[r] = part_at ? 0.0f : rows.before(row + 8 * r);
    // lse_before may be lse.
    if (has_before<Tile> && !part_at) named_sync(LatentBarrier::all_groups, 256);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int mine = row + 8 * r;
      float zero = 0;
#pragma unroll
      for (int i = 0; i < columns / 8; ++i) zero += o[4 * i + 2 * r] * 0.0f + o[4 * i + 2 * r + 1] * 0.0f;
      odd[r] = row_sum(zero) != 0.0f || row_sum(zero) != row_sum(zero);
      odd[r] = odd[r] && finite(part[r].sum) && rows.exists(mine);
      const bool first = Group == 0 && lane % 4 == 0 && rows.exists(mine);
      if (part_at) {
        if (first) parts_in<Tile>(part_at)[mine] = part[r];
      } else {
        by[r] = rows.end(mine, part[r], before[r], first);
      }
      if (odd[r] || !rows.exists(mine)) continue;
#pragma unroll
      for (int i = 0; i < columns / 8; ++i) {
        const int column = Group * columns + 8 * i + 2 * (lane & 3);
        const float x[2] = {o[4 * i + 2 * r], o[4 * i + 2 * r + 1]};
        put(rows, part_at, mine, column, x, by[r]);
      }
    }
    if (!__any_sync(~0u, odd[0] || odd[1])) return;
    const unsigned first = __ballot_sync(~0u, odd[0]), second = __ballot_sync(~0u, odd[1]);
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int r = i / 8, from = i % 8 * 4;
      if (((r ? second : first) >> from & 1) == 0) continue;
      const auto its = [&](float of_first, float of_second) {
        return __shfl_sync(~0u, r ? of_second : of_first, from);
      };
      by_pairs(item, rows, 16 * warp + i, part_at, its(part[0].over, part[1].over),
               {its(by[0].own, by[1].own), its(by[0].before, by[1].before)});
    }
  }
  template <int N>
  __device__ void put(const Rows& rows, float* part_at, int row, int column, const float (&x)[N],
                      typename Rows::Factors by) const {
    if (!part_at) return rows.put(row, column, x, by);
    float* const into = part_at + row * Tile::dv + column;
    if constexpr (N == 2)
      *reinterpret_cast<float2*>(into) = {x[0], x[1]};
    else
      *into = x[0];
  }

  /// A warp computes a row's results of this group's columns once more, pair by pair: a removed value must not reach a
  /// result, and a product of matrices leaves nothing out. Powers are relative to `over`.
  __device__ void by_pairs(const LatentItem<Tile, User>& item, const Rows& rows, int row, float* part_at, float over,
                           typename Rows::Factors by) const {
    constexpr int lanes = 32;
    const User& user = softmax.user;
    const LatentTile<Tile>& of = item.of;
    const int h = rows.head(row);
    const Where at = of.at(h);
    const auto head = user.head(at);
    const float factor = factor_of(user, head);
    const Int origin = of.q_offset, q = of.q_offset + rows.query(row);
    const auto my_row = user.row(head, at, q);
    const Reach<User> reach(user, head, my_row, at, q, 0);
    const auto* const q_line = static_cast<const Element*>(args.q.data) + of.b * args.q.batch + h * args.q.head +
                               (of.queries.start + rows.query(row)) * args.q.position;
    float mine[Tile::d / lanes], out[columns / lanes] = {};
#pragma unroll
    for (int j = 0; j < Tile::d / lanes; ++j) mine[j] = f32(q_line[lane + lanes * j]);
#pragma unroll 1
    for (int step = item.begin; step < item.end; ++step)
#pragma unroll 1
      for (int i = 0; i < n; ++i) {
        const int key = item.walk.tile(step) * n + i;
        if (key >= of.keys.length) break;
        const Int kv = of.kv_offset + key;
        const auto col = user.col(head, at, origin, kv);
        // All lanes agree; the vote tells the compiler so.
        if (!__any_sync(~0u, reach.holds(kv.i()) && user.keep(head, my_row, col, at, q, kv))) continue;
        const auto* const line = key_line(of, key);
        float x = 0;
        if (line)
#pragma unroll
          for (int j = 0; j < Tile::d / lanes; ++j) x += mine[j] * f32(line[lane + lanes * j]);
#pragma unroll
        for (int by = 1; by < lanes; by *= 2) x += __shfl_xor_sync(~0u, x, by);
        x = User::traits.scaled ? x * factor : user.exponent(x, head, my_row, col, at, origin, q, kv);
        if (__any_sync(~0u, x == -infinity) || !line) continue;
        float p = power_of_two(x - over);
        if constexpr (User::traits.has_prob) p = p == 0.0f ? 0.0f : user.prob(p, head, my_row, col, at, q, kv);
#pragma unroll
        for (int j = 0; j < columns / lanes; ++j) out[j] += p * f32(line[Group * columns + lane + lanes * j]);
      }
#pragma unroll
    for (int j = 0; j < columns / lanes; ++j) {
      const float x[1] = {out[j]};
      put(rows, part_at, row, Group * columns + lane + lanes * j, x, by);
    }
  }
  /// Where a key lies, or null: its page does not exist.
  __device__ const Element* key_line(const LatentTile<Tile>& of, int key) const {
    const auto* data = static_cast<const Element*>(args.k.data) + of.kv_head * args.k.head;
    if constexpr (Tile::paged) {
      const int nth = key / args.pages.rows, page = args.pages.at[of.b * args.pages.entry + nth * args.pages.nth];
      if (page < 0 || page >= args.pages.count) return nullptr;
      return data + page * args.k.batch + (key - nth * args.pages.rows) * args.k.position;
    } else {
      return data + (args.kv_shared ? 0 : of.b) * args.k.batch + (of.keys.start + key) * args.k.position;
    }
  }
};

template <class Tile>
__device__ inline Share& shared_share(unsigned shared) {
  return *static_cast<Share*>(__cvta_shared_to_generic(shared + SharedLatent<Tile>::share));
}

template <int Group, class Tile, class User>
__device__ inline void compute_latent(const LatentArgs& args, const User& user, unsigned shared) {
  using Shared = SharedLatent<Tile>;
  LatentPlace<Tile> place;
  const Share& share = shared_share<Tile>(shared);
#pragma unroll 1
  for (int tile = uniform(share.begin.tile); uniform(has_tile(share, tile)); ++tile) {
    const LatentItem<Tile, User> item(args, user, share, tile);
    LatentGroup<Tile, User, Group> group(args, user, shared, item);
    barrier_wait(shared + Shared::q_full, (tile - share.begin.tile) & 1);
    if (uniform(item.pairs) > 0) group.run(place);
    __syncwarp();
    if (group.lane == 0) barrier_arrive(shared + Shared::q_empty);
    pin_with_memory(tile);
    const LatentItem<Tile, User> again(args, user, share, tile);
    const Sharing sharing = again.begin > 0 ? share.at_begin : share.at_end;
    const int me = LatentTile<Tile>::sharer();
    group.store(again, (tile - share.begin.tile) & 1,
                again.whole() ? nullptr
                              : latent_part<Tile>(args, sharing.first, me - sharing.first, cluster_rank<Tile>()));
  }
}

template <class Tile, class User>
__global__ void __launch_bounds__(latent_threads, 1)
    latent_sm90(const __grid_constant__ ArgsOf<Tile, LatentArgs> args, const __grid_constant__ User user) {
  using Shared = SharedLatent<Tile>;
  extern __shared__ unsigned char memory[];
  const unsigned start = shared_address(memory), shared = (start + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    barrier_init(shared + Shared::q_full, 1);
    barrier_init(shared + Shared::q_empty, 8);
    for (int stage = 0; stage < Tile::stages; ++stage) {
      for (int c = 0; c < Shared::chunks; ++c) barrier_init(Shared::full(shared, stage, c), 1);
      for (int what = 0; what < 3; ++what) barrier_init(Shared::used(shared, stage, what), 4);
    }
    barrier_init_done();
  }
  // The next kernel's blocks take the places of those that are done, and wait there.
  let_next_start();
  using Room = ShareRoom<latent_threads>;
  static_assert(sizeof(Room) <= Shared::p_bytes);
  const Share share = find_share<Tile, LatentTile<Tile>>(
      args, user, *reinterpret_cast<Room*>(memory + (shared - start) + Shared::p), wait_for_kernel_before);
  // It may have written what this one reads, or read what it writes.
  wait_for_kernel_before();
  if (threadIdx.x == 0) shared_share<Tile>(shared) = share;
  const int me = LatentTile<Tile>::sharer();
  if (threadIdx.x == 0 && cluster_rank<Tile>() == 0) {
    const bool begins = share.end.step > 0 && (share.begin.tile < share.end.tile || share.begin.step == 0);
    args.cut[me] = begins && share.at_end.first == me ? CutTile{share.end.tile, me, share.at_end.count}
                                                      : CutTile{0, 0, 0};
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == 0) {
    registers_down<24>();
    const Share& its = shared_share<Tile>(shared);
    if (threadIdx.x == 0) load_latent<0, Tile>(args, user, its, shared);
    if (threadIdx.x == 32) load_latent<1, Tile>(args, user, its, shared);
  } else if (group == 1) {
    registers_up<240>();
    compute_latent<0, Tile>(args, user, shared);
  } else {
    registers_up<240>();
    compute_latent<1, Tile>(args, user, shared);
  }
}

}  // namespace attune

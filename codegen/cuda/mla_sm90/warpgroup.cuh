// codegen/cuda/mla_sm90/warpgroup.cuh — the registers of a consumer warpgroup of MLA on Hopper, and its steps: scores,
// then the probabilities of both warpgroups times its half of the values
#pragma once

#include "codegen/cuda/mla_sm90/items.cuh"
#include "codegen/cuda/parts/softmax_sm80.cuh"
#include "codegen/cuda/parts/warpgroup_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// A thread of a warpgroup while it has a tile of queries. Thread t of the warpgroup holds row t / 4 % 8 + 16 (t / 32)
/// and the row 8 below.
template <class Tile, class User, int Group>
struct MlaWarpgroup90 {
  using Element = typename Tile::Element;
  using Shared = SharedMla<Tile>;
  using Rows = MlaRows<Tile, User>;
  static constexpr int n = Tile::n, columns = Tile::dv / 2;
  static constexpr bool running = !fixed_maximum<Tile, User>;
  static constexpr int slack = Tile::max ? 0 : 8;
  static_assert(!User::traits.has_prob || User::traits.linear_prob);

  const MlaArgs& args;
  const unsigned shared;
  const MlaItem<Tile, User>& item;
  const int lane, warp, row;  ///< row: this thread's first
  Softmax80<User, running, 1, slack, Tile::heads> softmax;
  float s[n / 2], o[columns / 2];
  unsigned p[n / 4];

  __device__ MlaWarpgroup90(const MlaArgs& args, const User& user, unsigned shared, const MlaItem<Tile, User>& item)
      : MlaWarpgroup90(args, shared, item, Rows{args, user, item.of, item.unit}) {}
  __device__ MlaWarpgroup90(const MlaArgs& args, unsigned shared, const MlaItem<Tile, User>& item, const Rows& rows)
      : args(args), shared(shared), item(item), lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32 % 4), row(16 * warp + lane / 4),
        softmax(rows.user, item.of.at(rows.head(row)), rows.query(row), item.of.q_offset, item.of.q_offset,
                rows.head(row + 8)) {
    for (float& x : o) x = 0;
  }

  __device__ unsigned keys(int stage, int chunk) const {
    return shared + Shared::at.keys + stage * Shared::at.stage_bytes + chunk * Shared::at.chunk_size;
  }
  __device__ void release(int stage, int what) const { arrive_as_warp(Shared::used(shared, stage, what), lane); }

  __device__ static int stage(MlaPlace<Tile> place, int group) { return 2 * place.stage + group; }

  /// S = Q K^T with the keys of this warpgroup's stage, issued chunk by chunk as chunks arrive.
  __device__ void scores(MlaPlace<Tile> place) {
    const int mine = stage(place, Group);
#pragma unroll
    for (int nth = 0; nth < Shared::at.chunks; ++nth) {
      const int c = Shared::nth_chunk(Group, nth);
      barrier_wait(Shared::full(shared, mine, c), place.phase);
      wgmma_fence();
      const unsigned long long a = descriptor(shared + Shared::at.q + c * Tile::m * chunk_bytes),
                               b = descriptor(keys(mine, c));
      if (nth == 0)
        Product<n, Element>::template set4<Major::k, Major::k>(s, a, b);
      else
        Product<n, Element>::template ss4<Major::k, Major::k>(s, a, b, 1);
    }
    wgmma_commit();
  }
  __device__ unsigned long long values(int stage) const {
    return descriptor(keys(stage, Group * Shared::at.half_chunks), Shared::at.chunk_size);
  }
  /// O += P V with this warpgroup's P and its half of the values in a stage.
  __device__ void add_own(int stage) {
    const unsigned long long v = values(stage);
    wgmma_fence();
    Product<columns, Element>::template rs4<Major::n>(o, p, v, 1);
    wgmma_commit();
  }
  /// O += P V with the other warpgroup's P.
  __device__ void add_other(int stage) {
    const unsigned long long v = values(stage), theirs = descriptor(shared + Shared::at.p);
    wgmma_fence();
    Product<columns, Element>::template ss4<Major::k, Major::n>(o, theirs, v, 1);
    wgmma_commit();
  }

  /// P = exp2(S - max) of a tile. True if earlier results have to be multiplied by `lift`.
  __device__ bool weigh(int step, float (&lift)[1][2]) {
    // A copy: the compiler would wait for products in flight before using the registers of S.
    Fragment<1, n> x;
#pragma unroll
    for (int i = 0; i < n / 2; ++i)
      if constexpr (Group == 1 && Tile::issue_order < 2)
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
  __device__ unsigned tops(int group) const {
    return shared + Shared::at.tops + group * Shared::at.row_numbers + 4 * row;
  }
  /// Hands this tile's P to the other warpgroup.
  __device__ void hand_over() {
    const int line = lane & 15;
    const unsigned into = shared + Shared::at.p + (16 * warp + line) * chunk_bytes;
#pragma unroll
    for (int i = 0; i < n / 16; ++i)
      store_blocks(into + (((2 * i + (lane >> 4)) ^ (line & 7)) << 4), p[4 * i], p[4 * i + 1], p[4 * i + 2],
                   p[4 * i + 3]);
    if constexpr (running)
      if (lane % 4 == 0)
#pragma unroll
        for (int r = 0; r < 2; ++r) shared_put(tops(Group) + 32 * r, __float_as_int(softmax.top[0][r]));
    proxy_fence();
    named_arrive(probabilities + Group, 2 * warpgroup_threads);
  }
  __device__ void rescale(const float (&lift)[1][2]) {
#pragma unroll
    for (int i = 0; i < columns / 2; ++i) o[i] *= lift[0][i / 2 % 2];
  }
  /// Waits for the other warpgroup's P, and takes over the maxima that P is relative to.
  __device__ void take_over() {
    named_sync(probabilities + 1 - Group, 2 * warpgroup_threads);
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

  /// Clears this warpgroup's columns of rows past the last key: they may hold NaN, and 0 times NaN is NaN.
  __device__ void clear_tail(int step, int stage) {
    const int key = step < item.end ? item.walk.tile(step) * n : 0, there = item.of.keys.length - key;
    if (step >= item.end || there >= n) return;
    constexpr int pieces = columns * 2 / 16;
    const int thread = static_cast<int>(threadIdx.x) % 128;
#pragma unroll 1
    for (int i = there * pieces + thread; i < n * pieces; i += 128) {
      const int piece = i % pieces;
      shared_put(keys(stage, Group * Shared::at.half_chunks + piece / 8) + i / pieces * chunk_bytes + piece % 8 * 16,
                 0u, 0u, 0u, 0u);
    }
    proxy_fence();
    named_sync(warpgroup_cleared + Group, warpgroup_threads);
  }
  /// Waits for this warpgroup's columns of the other's stage. The other warpgroup has already waited for them.
  __device__ void see_other(MlaPlace<Tile> place) const {
#pragma unroll
    for (int c = 0; c < Shared::at.half_chunks; ++c)
      barrier_wait(Shared::full(shared, stage(place, 1 - Group), Group * Shared::at.half_chunks + c), place.phase);
  }

  /// O += P V of step `step`, with the other warpgroup's P and this warpgroup's columns of the values.
  __device__ void take(int step, MlaPlace<Tile> place) {
    const int theirs = stage(place, 1 - Group);
    take_over();
    see_other(place);
    clear_tail(step, theirs);
    pin(o);
    add_other(theirs);
  }
  /// Hands over this warpgroup's P; O += P V with this warpgroup's columns of the values.
  /// `last`: results will leave through the second warpgroup's half of the tile.
  __device__ void give(int step, MlaPlace<Tile> place, bool moved, const float (&lift)[1][2], bool waits, bool last) {
    const int mine = stage(place, Group);
    hand_over();
    if (moved) rescale(lift);
    clear_tail(step, mine);
    if (waits) named_sync(scores_done + 1 - Group, 2 * warpgroup_threads);
    pin(o);
    add_own(mine);
    wgmma_wait<0>(o);
    if (Group == 0 || !last) release(mine, Group);
  }
  /// Releases what only scores need: the keys' columns that are no values and, with the `last` ones, the queries.
  __device__ void wait_for_scores(MlaPlace<Tile> place, bool last) {
    wgmma_wait<0>(s);
    release(stage(place, Group), Shared::used_rest);
    if (last) arrive_as_warp(shared + Shared::at.q_empty, lane);
  }

  /// Adds up the item's keys. Leaves this warpgroup's columns of the last tile, which lies in the last stage, to be
  /// released once results have left through them.
  __device__ void run(MlaPlace<Tile>& place) {
    // Uniform, because all warps must issue the same products, and the compiler must know it.
    const int pairs = uniform(item.pairs);
    constexpr bool scores_first = Group == 0 || Tile::issue_order < 2;
    pin(o);
#pragma unroll 1
    for (int i = 0; i < pairs; ++i) {
      const int step = item.begin + 2 * i + Group, other = item.begin + 2 * i + 1 - Group;
      const bool last = i + 1 == pairs;
      float lift[1][2];
      if constexpr (scores_first) {
        if constexpr (Group == 1 && Tile::issue_order == 1) named_sync(scores_done, 2 * warpgroup_threads);
        scores(place);
      }
      if constexpr (Group == 0) {
        wait_for_scores(place, last);
        if (Tile::issue_order == 1 || (Tile::issue_order == 3 && i > 0))
          named_arrive(scores_done, 2 * warpgroup_threads);
        const bool moved = weigh(step, lift);
        give(step, place, moved, lift, Tile::issue_order == 3, last);
        take(other, place);
        wgmma_wait<0>(o);
        if (!last) release(stage(place, 1), Group);
      } else if constexpr (scores_first) {
        // The registers of O may not change while scores are under way.
        wait_for_scores(place, last);
        take(other, place);
        const bool moved = weigh(step, lift);
        wgmma_wait<0>(o);
        release(stage(place, 0), Group);
        give(step, place, moved, lift, false, last);
      } else {
        take(other, place);
        wgmma_wait<0>(o);
        release(stage(place, 0), Group);
        scores(place);
        wait_for_scores(place, last);
        if constexpr (Tile::issue_order == 3) named_arrive(scores_done + 1, 2 * warpgroup_threads);
        const bool moved = weigh(step, lift);
        give(step, place, moved, lift, Tile::issue_order == 3 && !last, last);
      }
      place.next();
    }
    // Tells the compiler that no product is under way any more.
    wgmma_wait<0>(s, o);
  }
};

}  // namespace attune

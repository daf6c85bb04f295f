// codegen/cuda/backward_sm90/warpgroup.cuh — the registers of a consumer warpgroup of Hopper's backward: its products,
// its pairs, and its results on their way to memory
#pragma once

#include "codegen/cuda/backward_sm90/tile_scheduler.cuh"
#include "codegen/cuda/parts/copied_read_sm90.cuh"
#include "codegen/cuda/parts/exact_sum.cuh"
#include "codegen/cuda/parts/warpgroup_sm90.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

/// With dropout, orders that compute P and dS at once draw for each pair: they serve narrow heads.
template <class Tile, class User>
using BackwardPairs90 = KeysByQueries<Tile, User, Shared90Backward<Tile>, User::traits.drops && (Tile::order > 0)>;

/// A thread's registers while its warpgroup computes 64 keys.
template <class Tile, class User>
struct BackwardWarpgroup90 : BackwardPairs90<Tile, User> {
  using Element = typename Tile::Element;
  using Shared = Shared90Backward<Tile>;
  using Pairs = BackwardPairs90<Tile, User>;
  using Row = typename User::Row;
  using Col = typename User::Col;
  using Pairs::args, Pairs::user, Pairs::shared, Pairs::group, Pairs::lane, Pairs::warp, Pairs::s, Pairs::at,
      Pairs::head, Pairs::factor, Pairs::origin, Pairs::is_kept, Pairs::drops, Pairs::has_prob, Pairs::kept,
      Pairs::counts, Pairs::dropped_factor, Pairs::prob_of, Pairs::prob_slope_of;
  static constexpr int m = Tile::m, n = Tile::n;
  static constexpr int order = Tile::order;
  /// dV follows dS, and weigh() leaves P itself in `s`: join() rounds it, and `p` takes no registers until then.
  static constexpr bool rounds_late = order == 3 && !User::gradient.has_slope;

  /// A thread's sums of captured tensors' gradients over an item and head: over all of its keys, and over each key.
  /// Orders 1 to 3 compute them from P, dP and delta alone.
  static constexpr int by_head = User::gradient.by_head, by_col = User::gradient.by_col;
  static constexpr bool sums_items = by_head > 0 || by_col > 0;
  float head_sums[max(by_head, 1)] = {}, col_sums[2][max(by_col, 1)] = {};

  float dp[m / 2];  ///< dP; later dQ, in its first ones
  float dk[Tile::d / 2], dv[Tile::dv / 2];
  unsigned p[m / 4], ds[m / 4];

  static constexpr int half_of_dq = Shared::turned ? m / 2 : 32;  ///< numbers of a thread
  __device__ float (&dq())[half_of_dq] { return *reinterpret_cast<float(*)[half_of_dq]>(dp); }

  // ---- products ----

  /// S^T = K Q^T
  __device__ void scores(int stage) {
    wgmma_fence();
    wgmma(s, shared.k().from(64 * group), shared.q()[stage]);
  }
  /// dP^T = V dO^T
  __device__ void flows(int stage) {
    wgmma_fence();
    wgmma(dp, shared.v().from(64 * group), shared.grad_o()[stage]);
  }
  /// dV += P^T dO
  __device__ void add_values(int stage, int add) { wgmma<0, m / 16>(dv, p, shared.grad_o()[stage], add); }
  /// dK += dS^T Q
  __device__ void add_keys(int stage, int add) { wgmma<0, m / 16>(dk, ds, shared.q()[stage], add); }
  /// This warpgroup's half of dQ = dS K, or of dQ^T = K^T dS^T.
  __device__ void products_of_queries(int buffer) {
    const unsigned long long of_ds = descriptor(shared.ds()[buffer].from(m == 128 ? 64 * group : 0)),
                             of_keys = descriptor(shared.k().from(m == 128 ? 0 : n * group));
    constexpr int next_ds = m * chunk_bytes >> 4, next_keys = 64 * chunk_bytes >> 4;
    wgmma_fence();
#pragma unroll
    for (int c = 0; c < n / Shared::at.chunk; ++c) {
      const unsigned long long x = of_ds + c * next_ds, y = of_keys + c * next_keys;
      if constexpr (Shared::turned) {
        if (c == 0)
          Product<m, Element>::template set4<Major::n, Major::k>(dq(), y, x);
        else
          Product<m, Element>::template ss4<Major::n, Major::k>(dq(), y, x, 1);
      } else {
        if (c == 0)
          Product<64, Element>::template set4<Major::k, Major::n>(dq(), x, y);
        else
          Product<64, Element>::template ss4<Major::k, Major::n>(dq(), x, y, 1);
      }
    }
    wgmma_commit();
  }

  // ---- pairs ----

  __device__ int word(unsigned step, int i) const { return uniform(shared_get(step_word(shared, step, i))); }
  __device__ void enter(unsigned step) {
    const int b = word(step, 2), h = word(step, 3);
    if constexpr (sums_items)
      if (at.b >= 0 && (at.b != b || at.h != h)) give_item_sums();
    this->enter_head(b, h, [&] { return Where{b, h, word(step, 9), word(step, 11)}; });
    this->enter_queries(word(step, 1));
    this->enter_keys(word(step, 4) * n + 64 * group);
    // Which pairs dropout keeps is drawn while products are under way.
    this->draw();
  }

  static constexpr bool copies = copies_for_backward<Tile, User>, copies_two = copies && attune::copies_two<Tile, User>,
                        copies_f32 = copies && Shared::wide && !copies_two;
  /// What the pairs of 16 queries read of captured tensors: elements of 16 bits as scores lie in registers, or where
  /// the first one of f32 lies.
  struct CopiedBlocks {
    unsigned two[4], second[copies_two ? 4 : 1];
  };
  __device__ void find_copied(CopiedBlocks& to, int buffer, int i) const {
    if constexpr (copies_f32) {
      // Two warps of a warpgroup have the even chunk, the others the odd one.
      const int line = 2 * (lane & 3), unit = 4 * (warp & 1) + (lane >> 4);
      to.two[0] = shared.base + (warp < 2 ? Shared::at.ds + buffer * Shared::at.ds_bytes : Shared::copied(buffer)) +
                  (group * m + 8 * i + line) * chunk_bytes + ((unit ^ line) << 4) + 4 * (lane >> 2 & 3);
    } else if constexpr (copies) {
      load_blocks_transposed(to.two, block_rows(buffer) + 8 * i * chunk_bytes);
      if constexpr (copies_two)
        load_blocks_transposed(to.second,
                               block_rows_from(shared.base + Shared::copied(buffer) + group * m * chunk_bytes) +
                                   8 * i * chunk_bytes);
    }
  }
  __device__ auto held_of(const CopiedBlocks& copied, int i, int e, int r) const {
    const int nth = 2 * (i % 2) + r;
    typename User::Held held{};
    if constexpr (copies_f32) {
      // Lines and units are exclusive sums of their bits.
      const unsigned at = copied.two[0] ^ e * (chunk_bytes + 16) ^ r * 32;
      held.copied = __int_as_float(shared_get(at + i % 2 * 8 * chunk_bytes));
    } else {
      held.copied = copied_of<User>(copied.two[nth], e);
    }
    if constexpr (copies_two) held.copied_second = copied_of<User, 1>(copied.second[nth], e);
    return held;
  }
  /// What was copied outside of dS's memory has been read: that of the next step may take its place.
  __device__ void give_copied() const {
    if constexpr (copies && Shared::shares_copied) arrive_as_warp(shared.copied_empty(), lane);
  }
  /// A pair, as each_pair() counts pairs.
  __device__ auto pair_of(const CopiedBlocks& copied, int i, int e, int r, const Row& row, const Col& col, Int q,
                          Int kv) const {
    const Pair<User> pair{head, row, col, at, origin, q, kv};
    if constexpr (copies)
      return HeldPair<User>{pair, held_of(copied, i, e, r)};
    else
      return pair;
  }

  /// P = exp2(S - lse). Leaves prob(P) as an operand in `p`, unless that is rounded late, and P times the slope in
  /// `s`, in f32.
  __device__ void weigh(int stage) {
    const unsigned ends = shared.under() + 4 * (stage * m + 2 * (lane & 3));
    float2 under{};
    float low[2];
    CopiedBlocks copied;
    this->template each_pair<false>([&](int i, int e, int r, const Row& row, const Col& col, Int q, Int kv, bool) {
      if (e == 0 && r == 0) {
        under = shared_get2(ends + 32 * i);
        if (i % 2 == 0) find_copied(copied, stage, i);
      }
      const int nth = 4 * i + 2 * r + e;
      const float given = s[nth];
      const auto pair = pair_of(copied, i, e, r, row, col, q, kv);
      // As in gradient_of().
      const bool keeps = !two_walks<User> || score_keeps(user, pair, given);
      const float to = probability_of(user, pair, factor, e ? under.y : under.x, keeps && is_kept(nth), given);
      if constexpr (!User::traits.keeps_zero)
        if (!keeps || (e ? under.y : under.x) == infinity) this->mask_out(nth);
      if constexpr (!rounds_late) {
        const float of_v = prob_of(to, i, e, r, row, col, q, kv);
        if (e == 0)
          low[r] = of_v;
        else
          p[2 * i + r] = pack<Element>(low[r], of_v);
      }
      if constexpr (User::gradient.has_slope)
        s[nth] = is_kept(nth) ? to * slope_of(user, pair, given) : 0.0f;
      else
        s[nth] = to;
    });
    give_copied();
  }

  /// dS = P (dP - delta), as an operand in `ds`, and P in `p` if rounded late. P here is what weigh() left in `s`, not
  /// rounded before.
  __device__ void join(int stage) {
    if constexpr (has_prob || sums_items) return join_with_terms(stage);
    if constexpr (drops && !rounds_late) kept.forget(lane);
    const unsigned ends = shared.delta() + 4 * (stage * m + 2 * (lane & 3));
#pragma unroll
    for (int i = 0; i < m / 8; ++i) {
      const float2 delta = shared_get2(ends + 32 * i);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int nth = 4 * i + 2 * r;
        if constexpr (drops) {
          const float by[2] = {dropped_factor(i, 0, r), dropped_factor(i, 1, r)};
          if constexpr (rounds_late) p[2 * i + r] = pack<Element>(s[nth] * by[0], s[nth + 1] * by[1]);
          ds[2 * i + r] = pack<Element>(s[nth] * __fmaf_rn(dp[nth], by[0], -delta.x),
                                        s[nth + 1] * __fmaf_rn(dp[nth + 1], by[1], -delta.y));
        } else {
          if constexpr (rounds_late) p[2 * i + r] = pack<Element>(s[nth], s[nth + 1]);
          ds[2 * i + r] = pack<Element>(s[nth] * (dp[nth] - delta.x), s[nth + 1] * (dp[nth + 1] - delta.y));
        }
      }
    }
  }

  // ---- sums of an item and head ----

  /// `s` is q . k if the terms read it. Pairs with P = 0 add nothing, even if their operands are NaN.
  __device__ void add_terms(Flow flow, float s, float p, int r, const Row& row, const Col& col, Int q, Int kv) {
    if constexpr (by_head > 0) user.by_head(head_sums, flow, s, p, head, row, col, at, origin, q, kv);
    if constexpr (by_col > 0) user.by_col(col_sums[r], flow, s, p, head, row, col, at, origin, q, kv);
  }
  /// Adds the sums to those of the tensors, exactly, so that the order of items does not matter, and clears them.
  __device__ void give_item_sums() {
    if constexpr (by_head > 0) {
      unsigned long long* places[by_head];
      user.places_by_head(places, head, at);
#pragma unroll
      for (int i = 0; i < by_head; ++i) {
        const float sum = warp_sum(head_sums[i]);
        if (lane == 0) add_exactly(places[i], sum);
        head_sums[i] = 0;
      }
    }
    if constexpr (by_col > 0)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int key = this->keys + 8 * r;
        const Int kv = min(key, at.kv_len - 1);
        unsigned long long* places[by_col];
        user.places_by_col(places, head, user.col(head, at, origin, kv), at, origin, kv);
#pragma unroll
        for (int i = 0; i < by_col; ++i) {
          const float sum = row_sum(col_sums[r][i]);
          if (lane % 4 == 0 && key < at.kv_len) add_exactly(places[i], sum);
          col_sums[r][i] = 0;
        }
      }
  }

  /// As join(), with a prob mod or sums: dS = P (prob'(P) dP - delta), and prob(P) in `p` if rounded late.
  __device__ void join_with_terms(int stage) {
    if constexpr (drops && !rounds_late) kept.forget(lane);
    const unsigned ends = shared.delta() + 4 * (stage * m + 2 * (lane & 3));
    float2 delta{};
    PairNumbers low[2];
    this->template each_pair<false>([&](int i, int e, int r, const Row& row, const Col& col, Int q, Int kv, bool) {
      if (e == 0 && r == 0) delta = shared_get2(ends + 32 * i);
      const int nth = 4 * i + 2 * r + e;
      const float x = s[nth];
      const float flow = dp[nth] * prob_slope_of(x, i, e, r, row, col, q, kv);
      const PairNumbers out{rounds_late ? prob_of(x, i, e, r, row, col, q, kv) : 0.0f,
                            x == 0.0f ? 0.0f : x * (flow - (e ? delta.y : delta.x))};
      if constexpr (sums_items) add_terms({out.dp, counts(nth, x) ? dp[nth] : 0.0f}, 0, x, r, row, col, q, kv);
      if (e == 0) {
        low[r] = out;
      } else {
        if constexpr (rounds_late) p[2 * i + r] = pack<Element>(low[r].s, out.s);
        ds[2 * i + r] = pack<Element>(low[r].dp, out.dp);
      }
    });
  }

  /// P and dS at once, after both products.
  __device__ void weigh_and_join(int stage) {
    const unsigned ends = shared.under() + 4 * (stage * m + 2 * (lane & 3));
    float2 under{}, delta{};
    PairNumbers low[2];
    CopiedBlocks copied;
    this->template each_pair<false>([&](int i, int e, int r, const Row& row, const Col& col, Int q, Int kv, bool) {
      if (e == 0 && r == 0) {
        under = shared_get2(ends + 32 * i);
        delta = shared_get2(ends + 32 * i + (Shared::at.delta - Shared::at.under));
        if (i % 2 == 0) find_copied(copied, stage, i);
      }
      const int nth = 4 * i + 2 * r + e;
      const RowEnd end = e ? RowEnd{under.y, delta.y} : RowEnd{under.x, delta.x};
      const PairNumbers out = gradient_of(user, pair_of(copied, i, e, r, row, col, q, kv), factor, end, is_kept(nth),
                                          {s[nth], dp[nth]}, [&](Flow flow, float s, float p) {
                                            if constexpr (sums_items) add_terms(flow, s, p, r, row, col, q, kv);
                                          });
      if (e == 0) {
        low[r] = out;
      } else {
        p[2 * i + r] = pack<Element>(low[r].s, out.s);
        ds[2 * i + r] = pack<Element>(low[r].dp, out.dp);
      }
    });
    give_copied();
  }

  /// For ldmatrix and stmatrix: where dS of a warp's 16 keys lies, queries by keys in swizzled rows of 64 keys.
  __device__ unsigned block_rows(int buffer) const { return block_rows_from(shared.ds()[buffer].from(m * group)); }
  __device__ unsigned block_rows_from(unsigned into) const {
    const int line = (lane & 7) + 8 * (lane >> 4);
    return into + line * chunk_bytes + (((2 * warp + (lane >> 3 & 1)) ^ (lane & 7)) << 4);
  }
  /// Puts dS into shared memory.
  __device__ void share(int buffer) const {
    const unsigned address = block_rows(buffer);
    // dS of a warp lies where other warps of the warpgroup have read elements of f32.
    if constexpr (copies_f32) named_sync(results_staged + group, warpgroup_threads);
#pragma unroll
    for (int i = 0; i < m / 16; ++i)
      store_blocks_transposed(address + i * 16 * chunk_bytes, ds[4 * i], ds[4 * i + 1], ds[4 * i + 2], ds[4 * i + 3]);
  }

  // ---- results on their way ----

  static constexpr bool has_diagonals = User::gradient.by_diagonal > 0;
  /// Waits until the warps that sum diagonals are done with the previous dS in this buffer.
  __device__ void wait_for_diagonals(int buffer, unsigned phase) const {
    if constexpr (has_diagonals) shared.ds_full()[buffer].acquire(phase);
  }
  __device__ void give_diagonals(int buffer) const {
    if constexpr (has_diagonals) arrive_as_warp(shared.ds_full()[buffer].full, lane);
  }

  static constexpr bool stores_ds = User::gradient.by_ds > 0;
  /// Stores dS of this warpgroup's keys to memory, if it is asked for, while products read it. To be called when the
  /// whole warpgroup has put dS there, and fenced it.
  __device__ void store_ds(int buffer, unsigned step) const {
    if constexpr (stores_ds) {
      const StoredDs& to = user.stored_ds;
      if (threadIdx.x % warpgroup_threads == 0) {
        const auto word = [&](int i) { return shared_get(step_word(shared, step, i)); };
        const unsigned from = shared.ds()[buffer].from(m * group);
        const int key = (word(4) - to.first_tile) * n + 64 * group;
        if constexpr (is_packed<Tile>)
          store_box(to.map, from, key, word(6) * m, 0, 0);
        else
          store_box(to.map, from, key, word(1) * m, word(3), word(2));
        store_commit();
      }
      __syncwarp();
    }
  }
  /// Waits until the store has read dS; to be called before the stage is released, because the next bias is copied
  /// there.
  __device__ void wait_for_stored_ds() const {
    if constexpr (stores_ds) store_wait_read();
  }

  /// Stores dQ as the sums of all items: the loaded ones of others, if there are any, and this one's.
  __device__ void complete(int stage, unsigned phase, unsigned step) {
    const unsigned stage_sums = shared.sums(stage), from = stage_sums + 4096 * (4 * group + warp) + 16 * lane;
    float(&x)[half_of_dq] = dq();
    if (word(step, 7) > 0) {
      barrier_wait(shared.sums_loaded(stage), phase);
      // The sums in memory are not needed again: 128 bytes a thread.
      static_assert(Shared::sum_bytes == 2 * warpgroup_threads * 128);
      float* const line = args.sums + static_cast<long long>(word(step, 6)) * (Shared::sum_bytes / 4) +
                          32 * (group * warpgroup_threads + 32 * warp + lane);
      if ((reinterpret_cast<unsigned long long>(line) & 127) == 0) global_discard(line);
#pragma unroll
      for (int i = 0; i < half_of_dq / 4; ++i) {
        const float4 others = shared_get4(from + 512 * i);
        x[4 * i] += others.x, x[4 * i + 1] += others.y, x[4 * i + 2] += others.z, x[4 * i + 3] += others.w;
      }
    }
    store_queries(step, stage_sums);
  }
  /// Writes this warpgroup's half of dQ where an adding warp reads it, or stores it if it is complete.
  __device__ void put_sums(int stage, unsigned phase, unsigned step, int what) {
    if constexpr (is_alone<Tile>) return store_queries(step, shared.sums(0));
    wait_for_sums(stage, phase);
    if constexpr (completes_dq<Tile>) {
      if (what & Step::completes) return complete(stage, phase, step);
      // Each warp's part lies together, because complete() stores through it.
      const unsigned into = shared.sums(stage) + 4096 * (4 * group + warp) + 16 * lane;
      const float(&x)[half_of_dq] = dq();
#pragma unroll
      for (int i = 0; i < half_of_dq / 4; ++i)
        shared_put(into + 512 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
      return;
    }
    const unsigned into = shared.sums(stage) + group * (Shared::sum_bytes / 2) + 16 * (32 * warp + lane);
    const float(&x)[half_of_dq] = dq();
#pragma unroll
    for (int i = 0; i < half_of_dq / 4; ++i)
      shared_put(into + 2048 * i, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
  /// Waits until the previous dQ has left the stage.
  __device__ void wait_for_sums(int stage, unsigned phase) const {
    if constexpr (is_alone<Tile>) return;
    if constexpr (Shared::sum_stages == 1)
      shared.sum_full()[stage ^ 1].acquire(phase ^ static_cast<unsigned>(stage));
    else
      shared.sum_full()[stage].acquire(phase);
  }
  /// dQ in the stage is complete. To be called after a proxy_fence().
  __device__ void give_sums(int stage) const {
    if constexpr (!is_alone<Tile>) arrive_as_warp(shared.sum_full()[stage].full, lane);
  }
  /// Stores the warp's 16 queries of dQ, through its part of `sums`: half of the width, or with 128 queries all of it.
  __device__ void store_queries(unsigned step, unsigned sums) {
    Gradient to = args.grad_q;
    if (!to.to.data) return;
    if constexpr (User::gradient.removes || is_packed<Tile>)
      if (args.non_finite && __any_sync(~0u, has_non_finite(dq())) && lane == 0) *args.non_finite = 1;
    const int first = m == 128 ? 0 : 64 * group;
    to.to.data = static_cast<char*>(to.to.data) + first * to.to.element * (to.type == Stored::f32 ? 4 : 2);
    const WarpRows rows{to,
                        word(step, 2),
                        word(step, 3),
                        {word(step, 8), word(step, 9)},
                        word(step, 1) * m + (m == 128 ? 64 * group : 0) + 16 * warp,
                        args.d - first};
    const unsigned area = sums + 4096 * (4 * group + warp);
    if (stores_eights<Element>(to, rows.width))
      store_sixteen<Element>(dq(), args.scale, rows, area, lane);
    else
      stage_sixteen(dq(), args.scale, area, lane, [&](int column) { store_rows(rows, area, column, lane); });
  }

  /// This warp's part of its warpgroup's dS memory: 16 rows of staged().
  __device__ unsigned staging() const {
    constexpr int part = 16 * 64 * 4, of_group = m * chunk_bytes, parts = of_group / part;
    return shared.ds()[warp / parts] + group * of_group + warp % parts * part;
  }
  /// Stores the warp's 16 keys of dV and dK through staging(). Returns false if all numbers are finite.
  __device__ bool store_keys(int b, int kv_head, int keys, Range of) {
    const unsigned area = staging();
    // Otherwise what depends on the lane alone is computed before the main loop, and takes registers there.
    int lane = static_cast<int>(threadIdx.x) % 32;
    pin(lane);
    const auto rows = [&](const Gradient& to, int width) {
      return WarpRows{to, args.kv_shared ? 0 : b, kv_head, of, keys, width};
    };
    if (!uniform(shared_get(shared.in_eights()))) {
      const auto store = [&](const auto& x, float by, const WarpRows& rows) {
        if (rows.to.to.data) stage_sixteen(x, by, area, lane, [&](int first) { store_rows(rows, area, first, lane); });
      };
      store(dv, 1, rows(args.grad_v, args.dv));
      store(dk, args.scale, rows(args.grad_k, args.d));
      return true;
    }
    unsigned pairs[max(Tile::d, Tile::dv) / 4];
    pack_pairs<Element>(pairs, dv, 1);
    bool any = false;
    // Both by the same code, because it is fetched for each item.
#pragma unroll 1
    for (int nth = 0;; ++nth) {
      any |= store_pairs<Element>(pairs, rows(nth ? args.grad_k : args.grad_v, nth ? args.d : args.dv), area, lane);
      if (nth) return any;
      pack_pairs<Element>(pairs, dk, args.scale);
    }
  }
};

}  // namespace attune

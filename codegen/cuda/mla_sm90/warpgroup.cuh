// codegen/cuda/mla_sm90/warpgroup.cuh — the registers of a consumer warpgroup of MLA on Hopper, and its steps: scores,
// the probabilities of both warpgroups times its half of the values, and the epilogue
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
  static_assert(!User::traits.has_prob || User::traits.degree == 1);

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

  // ---- the epilogue ----

  /// A warp's memory for its rows: all of this warpgroup's columns in 16 bits, or 64 of them in f32.
  static constexpr int staged_bytes = Shared::at.half_chunks * Shared::at.chunk_size / 4;
  static_assert(16 * 64 * 4 <= staged_bytes && 8 * staged_bytes <= Shared::at.q_bytes);
  /// Whether each lane stores eight columns at a time, and a warp a row.
  static constexpr bool by_eights = columns == 256 && sizeof(typename Tile::Out) == 2 && Tile::store >= 16 &&
                                    !has_before<Tile>;

  /// Adds both warpgroups' sums of this thread's rows, in the same order in both warpgroups.
  __device__ void meet(int parity, int row, int lane, RowPartial (&part)[2]) const {
    const auto at = [&](int group) {
      return shared + Shared::at.sums + (2 * parity + group) * Shared::at.row_numbers + 4 * row;
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      part[r] = softmax.part(0, r);
      if (lane % 4 == 0) shared_put(at(Group) + 32 * r, __float_as_int(part[r].sum));
    }
    named_sync(all_groups, 2 * warpgroup_threads);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      part[r].sum = __int_as_float(shared_get(at(0) + 32 * r)) + __int_as_float(shared_get(at(1) + 32 * r));
  }

  /// Stores results, or a part of them, by way of this warpgroup's shared memory `through`. Arrives at the barrier
  /// `freed` once they have left this memory.
  __device__ void store(const MlaItem<Tile, User>& item, int parity, float* part_at, unsigned through, unsigned freed) {
    int thread = static_cast<int>(threadIdx.x) % 128;
    pin(thread);
    const int lane = thread % 32, warp = thread / 32, row = 16 * warp + lane / 4;
    const Rows rows{args, softmax.user, item.of, item.unit};
    RowPartial part[2];
    meet(parity, row, lane, part);
    bool non_finite[2];
    typename Rows::Factors by[2] = {};
    float before[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) before[r] = part_at ? 0.0f : rows.before(row + 8 * r);
    // lse_before may be lse.
    if (has_before<Tile> && !part_at) named_sync(all_groups, 2 * warpgroup_threads);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int mine = row + 8 * r;
      float zero[2] = {};
#pragma unroll
      for (int i = 0; i < columns / 4; ++i) zero[i % 2] += o[4 * (i / 2) + 2 * r + i % 2] * 0.0f;
      non_finite[r] = !(row_sum(zero[0] + zero[1]) == 0.0f) && finite(part[r].sum) && rows.exists(mine);
      const bool first = Group == 0 && lane % 4 == 0 && rows.exists(mine);
      if (part_at) {
        if (first) parts_in<Tile>(part_at)[mine] = part[r];
      } else {
        by[r] = rows.end(mine, part[r], before[r], first);
      }
    }
    const unsigned first = __ballot_sync(~0u, non_finite[0]), second = __ballot_sync(~0u, non_finite[1]);
    const auto is_finite = [&](int line) { return ((line < 8 ? first : second) >> line % 8 * 4 & 1) == 0; };
    // What the lane that has line `line` of the warp's 16 has.
    const auto its = [&](int line, float of_first, float of_second) {
      return __shfl_sync(~0u, line < 8 ? of_first : of_second, line % 8 * 4);
    };
    const unsigned area = through + warp * staged_bytes;
    const auto free = [&] {
      proxy_fence();
      arrive_as_warp(freed, lane);
    };
    // Loops over lines: code that runs once per tile is fetched each time, and unrolled stores of all 128 numbers took
    // 13 us longer.
    const auto store_fours = [&](const auto& put_four) {
      stage_sixteen(o, 1, area, lane, [&](int column) {
#pragma unroll 1
        for (int i = 0; i < 16; i += 2) {
          const int line = i + lane / 16, mine = 16 * warp + line, at = 4 * (lane % 16);
          const float4 x = shared_get4(staged(area, line, at));
          put_four(line, is_finite(line) && rows.exists(mine), Group * columns + column + at, x);
        }
      });
      free();
    };
    if (part_at)
      store_fours([&](int line, bool there, int column, float4 x) {
        if (there) *reinterpret_cast<float4*>(part_at + (16 * warp + line) * Tile::dv + column) = x;
      });
    else if constexpr (by_eights)
      store_eights(rows, by, (lane % 16 < 8 ? first : second) >> lane % 8 * 4 & 1, area, lane, warp, free);
    else
      store_fours([&](int line, bool there, int column, float4 x) {
        const typename Rows::Factors factors{its(line, by[0].own, by[1].own), its(line, by[0].before, by[1].before)};
        const float four[4] = {x.x, x.y, x.z, x.w};
        if (there) rows.put(16 * warp + line, column, four, factors);
      });
    if (first == 0 && second == 0) return;
#pragma unroll 1
    for (int line = 0; line < 16; ++line)
      if (!is_finite(line))
        by_pairs(item, rows, 16 * warp + line, part_at, its(line, part[0].over, part[1].over),
                 {its(line, by[0].own, by[1].own), its(line, by[0].before, by[1].before)});
  }
  /// Stores a warp's rows, scaled, in 16 bits. `skips`: true if row lane % 16 is not stored. Calls free() once all rows
  /// are in registers again. A loop over lines that found each address anew, with 64 columns of two rows at a time,
  /// took several thousand clocks.
  template <class Free>
  __device__ void store_eights(const Rows& rows, const typename Rows::Factors (&by)[2], bool skips, unsigned area,
                               int lane, int warp, const Free& free) {
    using Out = typename Tile::Out;
    constexpr int pitch = 2 * columns;
    float own[2] = {by[0].own, by[1].own};
    // A result whose factor is 0 may hold anything.
    if (__any_sync(~0u, own[0] == 0.0f || own[1] == 0.0f))
#pragma unroll
      for (int i = 0; i < columns / 2; ++i)
        if (own[i / 2 % 2] == 0.0f) o[i] = own[i / 2 % 2] = 0;
    const int line = lane & 15, mine = 16 * warp + line;
    const unsigned into = area + pitch * line + 16 * (lane >> 4 ^ (line & 7));
#pragma unroll
    for (int i = 0; i < columns / 2; i += 8) {
      unsigned x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = pack<Out>(o[i + 2 * j] * own[j % 2], o[i + 2 * j + 1] * own[j % 2]);
      store_blocks(into ^ 4 * i, x[0], x[1], x[2], x[3]);
    }
    const long long row = rows.of.b * args.o.batch + rows.head(mine) * args.o.head +
                          (rows.of.queries.start + rows.query(mine)) * args.o.position;
    Out* const to = static_cast<Out*>(args.o.data) + row + Group * columns;
    const unsigned long long at = rows.exists(mine) && !skips ? reinterpret_cast<unsigned long long>(to) : 0;
    __syncwarp();
    uint4 x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = shared_get_words((area + 16 * lane ^ 16 * (i & 7)) + pitch * i);
    free();
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (const unsigned long long its = __shfl_sync(~0u, at, i))
        global_put(reinterpret_cast<uint4*>(its) + lane, x[i]);
  }
  __device__ void put(const Rows& rows, float* part_at, int row, int column, float x, typename Rows::Factors by) const {
    const float one[1] = {x};
    if (part_at)
      part_at[row * Tile::dv + column] = x;
    else
      rows.put(row, column, one, by);
  }

  /// A warp recomputes a row's results in this warpgroup's columns pair by pair, because a masked-out value must not
  /// reach a result, and a matrix product skips nothing. Powers are relative to `over`.
  __device__ void by_pairs(const MlaItem<Tile, User>& item, const Rows& rows, int row, float* part_at, float over,
                           typename Rows::Factors by) const {
    constexpr int lanes = 32;
    const User& user = softmax.user;
    const MlaTile<Tile>& of = item.of;
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
        // All lanes agree; the vote tells the compiler.
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
    for (int j = 0; j < columns / lanes; ++j) put(rows, part_at, row, Group * columns + lane + lanes * j, out[j], by);
  }
  /// The address of a key, or null if its page does not exist.
  __device__ const Element* key_line(const MlaTile<Tile>& of, int key) const {
    const auto* data = static_cast<const Element*>(args.k.data) + of.kv_head * args.k.head;
    if constexpr (Tile::paged) {
      const Pages pages(args.page_table, of.b);
      const Pages::At at = pages.at(key);
      return pages.exists(at.page) ? data + at.page * args.k.batch + at.row * args.k.position : nullptr;
    } else {
      return data + (args.kv_shared ? 0 : of.b) * args.k.batch + (of.keys.start + key) * args.k.position;
    }
  }
};

}  // namespace attune

// codegen/cuda/mla_sm90/epilogue.cuh — the epilogue of MLA on Hopper: stores results or a part of them; recomputes rows
// pair by pair on the exact path
#pragma once

#include "codegen/cuda/mla_sm90/warpgroup.cuh"
#include "codegen/cuda/ptx/memory.cuh"

namespace attune {

template <class Tile, class User, int Group>
struct MlaEpilogue90 : MlaWarpgroup90<Tile, User, Group> {
  using Base = MlaWarpgroup90<Tile, User, Group>;
  using Base::args, Base::columns, Base::lane, Base::n, Base::o, Base::shared, Base::softmax;
  using Base::Base;
  using typename Base::Element, typename Base::Rows, typename Base::Shared;
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

// codegen/cuda/forward_sm90/exact.cuh — the exact path of Hopper's forward: rows with non-finite values and masked-out
// pairs are computed pair by pair
#pragma once

#include "codegen/cuda/forward_sm90/epilogue.cuh"
#include "codegen/cuda/forward_sm90/key_source.cuh"

namespace attune {

template <class Tile, class User>
struct ForwardExact90 : ForwardEpilogue90<Tile, User> {
  using Epilogue = ForwardEpilogue90<Tile, User>;
  using Epilogue::args, Epilogue::at, Epilogue::factor, Epilogue::head, Epilogue::lane, Epilogue::n, Epilogue::origin,
      Epilogue::entry, Epilogue::shared, Epilogue::user;
  using Epilogue::ended, Epilogue::head_of, Epilogue::leave_row, Epilogue::left, Epilogue::of_known, Epilogue::query,
      Epilogue::result;
  using typename Epilogue::Element, typename Epilogue::Out, typename Epilogue::Factors;

  /// The batch entry and head of the warp's nth row; the same in every thread.
  __device__ Where of_row(const Work& work, int nth) const {
    Where out = at;
    if constexpr (Tile::heads > 1) out.h = work.heads.first + head_of(nth);
    return out;
  }
  __device__ typename User::Head head_at(const Where& at) const { return Tile::heads == 1 ? head : user.head(at); }
  __device__ float factor_at(const typename User::Head& head) const {
    return Tile::heads == 1 ? factor : factor_of(user, head);
  }

  /// Recomputes rows pair by pair, some fifty times slower, if values are non-finite and pairs are masked out: a
  /// masked-out value must not reach a result, and a matrix product skips nothing. A warp takes one row after another.
  __device__ void by_pairs(const Work& work, const Walk& walk) {
    Source source(args, shared);
    source.enter(work.b, work.heads.first / args.group, entry);
#pragma unroll 1
    for (int r = 0; r < 16; ++r) {
      const int q = uniform(work.tile * queries_of<Tile> + query(r));
      if (q >= at.q_len) return;
      if (head_of(r) >= work.heads.count) continue;
      // This row may belong to a different head than the thread's own rows.
      row_by_pairs(source, walk, of_row(work, r), q);
    }
  }

 private:
  /// 0 in a row of a missing page, as tiles have it.
  __device__ static float element_of(const Element* line, int j) {
    if constexpr (is_paged<Tile>)
      if (!line) return 0;
    return f32(line[j]);
  }
  using Source = typename KeySourceOf<Tile>::Type;
  static constexpr int lanes = 32;
  /// Calls f(x, column) for this lane's columns of a row.
  template <int N, class F>
  __device__ void each_of(float (&list)[N], int count, const F& f) const {
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (lane + lanes * j < count) f(list[j], lane + lanes * j);
  }

  __device__ void row_by_pairs(const Source& source, const Walk& walk, const Where& at, int q) {
    const auto head = head_at(at);
    const float factor = factor_at(head);
    const Int q_at = entry.query(q);
    const auto my_row = user.row(head, at, q_at);
    const Reach<User> reach(user, head, my_row, at, q_at, 0);
    float mine[(Tile::d + lanes - 1) / lanes], out[(Tile::dv + lanes - 1) / lanes] = {};
    const Element* q_line = static_cast<const Element*>(args.q.data) + at.b * args.q.batch + at.h * args.q.head +
                            (entry.queries.start + q) * args.q.position;
    each_of(mine, args.d, [&](float& x, int j) { x = f32(q_line[j]); });
    float top = -infinity, sum = 0, per_power = 0;
    // With two walks, the first one finds the sum alone.
#pragma unroll 1
    for (int nth = 0; nth < (two_walks<User> ? 2 : 1); ++nth) {
#pragma unroll 1
      for (int i = 0; i < walk.count * n; ++i) {
        const int key = walk.tile(i / n) * n + n - 1 - i % n, kv = entry.key(key);
        const Int kv_at = kv;
        if (kv >= at.kv_len) continue;
        const auto col = user.col(head, at, origin, kv_at);
        // All lanes agree; the vote tells the compiler.
        if (!__any_sync(~0u, reach.holds(kv) && user.keep(head, my_row, col, at, q_at, kv_at))) continue;
        const Element* k_line = source.key(key);
        float x = 0;
        each_of(mine, args.d, [&](float y, int j) { x += y * element_of(k_line, j); });
#pragma unroll
        for (int step = 1; step < lanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
        x = User::traits.scaled ? x * factor : user.exponent(x, head, my_row, col, at, origin, q_at, kv_at);
        if (__any_sync(~0u, x == -infinity)) continue;
        float p, old = 1;
        if (two_walks<User> && nth == 1) {
          p = power_of_two(x - top) * per_power;
        } else {
          const float most = fmaxf(top, x);
          old = top == -infinity ? 0.0f : power_of_two(top - most);
          p = power_of_two(x - most);
          sum = sum * old + p;
          top = most;
          if (two_walks<User>) continue;
        }
        if constexpr (User::traits.has_prob) p = user.prob(p, head, my_row, col, at, q_at, kv_at);
        const Element* v_line = source.value(key);
        each_of(out, args.dv, [&](float& y, int j) { y = (old == 0.0f ? 0.0f : y * old) + p * element_of(v_line, j); });
      }
      if constexpr (two_walks<User>)
        if (nth == 0) per_power = ended(at, head, q, sum, top, 0, lane == 0).own;
    }
    if constexpr (is_in_parts<Tile>) {
      leave_row(at, head, q, {sum, top}, lane == 0);
      float* const row = left(at.h, q);
      return each_of(out, args.dv, [&](float y, int j) { row[j] = y; });
    }
    const Factors by = two_walks<User> ? Factors{of_known(per_power), 0} : ended(at, head, q, sum, top, 0, lane == 0);
    Out* o_line = result(at.h, q);
    each_of(out, args.dv, [&](float y, int j) {
      float x = by.own == 0.0f ? 0.0f : y * by.own;
      if constexpr (has_before<Tile>)
        if (by.before != 0.0f) x += by.before * o_before(args, at.b, at.h, entry.queries.start + q, j);
      if constexpr (sizeof(Out) == 2)
        o_line[j] = {static_cast<unsigned short>(pack<Out>(x, 0.0f))};
      else
        o_line[j] = x;
    });
  }
};

}  // namespace attune

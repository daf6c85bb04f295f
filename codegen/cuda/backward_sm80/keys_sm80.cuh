// codegen/cuda/backward_sm80/keys_sm80.cuh — the portable backward of k and v, for any GPU since sm_80: every width,
// stride and type
//
// A block keeps a tile of keys of one key head, 16 keys per warp, and iterates over the queries of the group's heads
// that see these keys. It computes S^T = K Q^T, so P^T and dS^T stay in registers between two products. Queries and
// grad_o load one tile ahead. Nothing is added up across blocks.
//
// The fast path masks pairs only by their exponents. If pairs may be masked out and a result is non-finite, the warp
// recomputes its keys pair by pair, some hundred times slower.
#pragma once

#include "codegen/cuda/backward_sm80/layout.cuh"
#include "codegen/cuda/parts/backward_sm80.cuh"

namespace attune {

/// Offsets into shared memory, from layout/.
template <class Tile>
struct SharedKeys80 {
  static constexpr int size = ElementOf<typename Tile::Element>::bytes;
  static constexpr KeysLayout80 at{
      .m = Tile::m, .n = Tile::n, .d = Tile::d, .dv = Tile::dv, .stages = Tile::stages, .element = size};
};

/// Not inlined, so it does not raise the caller's register count.
template <class Tile, class User, int Gives>
__device__ __noinline__ void keys_pair_by_pair(const BackwardArgs& args, const User& user, unsigned shared);

/// Gives: 1 for the gradient of v; 2 for the gradients of k and of the tensors that scores capture; 3 for all.
template <class Tile, class User, int Gives>
struct Keys80 {
  using Element = typename Tile::Element;
  using Shared = SharedKeys80<Tile>;
  using Head = typename User::Head;
  using Row = typename User::Row;
  using Col = typename User::Col;
  static constexpr int size = Shared::size, per_step = 32 / size, m = Tile::m, n = Tile::n;
  static constexpr bool exact = Tile::exact && size == 4;
  static constexpr bool gives_v = Gives & 1, gives_k = Gives & 2;
  /// The compiler drops the registers of a gradient that is not computed.
  static constexpr int dk_width = gives_k ? Tile::d : 16, dv_width = gives_v ? Tile::dv : 16;
  using QLine = Lines<Tile::d * size>;
  using VLine = Lines<Tile::dv * size>;
  static constexpr GradientTraits terms = User::gradient;
  static constexpr bool has_terms = gives_k && (terms.by_col > 0 || terms.by_pair > 0);

  /// The fields of a query that its pairs read. Limits leave the query the keys [from, to].
  struct End {
    RowEnd end;
    int from, to;
  };

  const BackwardArgs& args;
  const User& user;
  const unsigned shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int b, kv_head, tile, tiles;  ///< b: the batch entry of k
  Range keys{};                 ///< of entry b
  Fragment<1, dk_width> dk;
  Fragment<1, dv_width> dv;

  /// Key tiles of a section of heads run next to each other, first keys first: with a causal mask these take longest.
  __device__ Keys80(const BackwardArgs& args, const User& user, unsigned shared, long long block = blockIdx.x)
      : args(args), user(user), shared(shared) {
    const int kv_heads = args.q_heads / args.group, sets = kv_heads * (args.kv_shared ? 1 : args.batch),
              section = max(args.section, 1);
    tiles = (args.kv_len + n - 1) / n;
    const long long of_section = static_cast<long long>(tiles) * section;
    const int before = static_cast<int>(block / of_section) * section, here = min(section, sets - before),
              within = static_cast<int>(block % of_section), set = before + within % here;
    tile = within / here;
    b = set / kv_heads;
    kv_head = set % kv_heads;
    keys = entry_of<Tile>(args, b).keys;
  }

  __device__ int first_key() const { return tile * n; }
  __device__ Rows80 rows(const Strided& t, int b, int h, int start) const { return rows_of<Element>(t, b, h, start); }

  __device__ void load_keys() {
    load_rows<Tile, n, Tile::d * size, Tile::width * size, false>(
        shared + Shared::at.k, rows(args.k, b, kv_head, keys.start), first_key(), keys.length);
    load_rows<Tile, n, Tile::dv * size, Tile::width_v * size, false>(
        shared + Shared::at.v, rows(args.v, b, kv_head, keys.start), first_key(), keys.length);
  }

  // ---- the queries of a head -------------------------------------------------------------------------------------

  /// A query head of a batch entry that reads these keys.
  struct Reader {
    Entry entry;
    Where at;
    Head head;
    float factor;
  };
  __device__ Reader reader(int of_b, int h) const {
    Reader out{.entry = entry_of<Tile>(args, of_b), .at = {}, .head = {}, .factor = 1};
    out.entry.keys = keys;
    out.at = out.entry.at(of_b, h);
    out.head = user.head(out.at);
    out.factor = factor_of(user, out.head);
    return out;
  }
  /// The tiles of queries that see these keys.
  __device__ Walk walk_of(const Reader& of) const {
    if constexpr (User::traits.listed) return walk_list(args, of.at.b, of.at.h, tiles, tile);
    return walk_of_keys<m>(user, of.entry, of.at, of.head, first_key(), min(first_key() + n, keys.length));
  }
  /// Visits tiles of queries in rising order: under a causal mask the partial ones come first.
  __device__ static int visit_of(const Walk& walk, int i) { return walk.count - 1 - i; }

  __device__ void load_queries(const Reader& of, int q_tile, int stage) {
    load_rows<Tile, m, Tile::d * size, Tile::width * size, false>(
        shared + Shared::at.q + static_cast<unsigned>(stage * Shared::at.q_bytes),
        rows(args.q, of.at.b, of.at.h, of.entry.queries.start), q_tile * m, of.entry.queries.length);
    load_rows<Tile, m, Tile::dv * size, Tile::width_v * size, false>(
        shared + Shared::at.grad_o + static_cast<unsigned>(stage * Shared::at.grad_o_bytes),
        rows(args.grad_o, of.at.b, of.at.h, of.entry.queries.start), q_tile * m, of.entry.queries.length);
  }
  /// Query `i`; a query past the end has no keys.
  __device__ End end(const Reader& of, int i, Int origin) const {
    if (i >= of.entry.queries.length) return {no_row(), 1, 0};
    const Int q = of.entry.query(i);
    const Row row = user.row(of.head, of.at, q);
    const Reach<User> reach(user, of.head, row, of.at, q, 0);
    return {end_of(args, user, Query<User>{of.head, row, of.at, origin, q}, of.entry.queries.start + i), reach.from,
            reach.to};
  }
  __device__ unsigned end_at(int i, int stage) const {
    return shared + Shared::at.ends + static_cast<unsigned>(stage * Shared::at.ends_bytes + Shared::at.end_bytes * i);
  }
  __device__ void keep_end(const End& end, int stage) const {
    const unsigned to = end_at(static_cast<int>(threadIdx.x), stage);
    shared_put(to, __float_as_uint(end.end.under), __float_as_uint(end.end.delta));
    shared_put(to + 8, static_cast<unsigned>(end.from), static_cast<unsigned>(end.to));
  }
  __device__ End end_of_column(int i, int stage) const {
    const uint4 x = shared_get_words(end_at(i, stage));
    return {{__uint_as_float(x.x), __uint_as_float(x.y)}, static_cast<int>(x.z), static_cast<int>(x.w)};
  }

  // ---- a tile of pairs -------------------------------------------------------------------------------------------

  /// This thread's gradient terms, summed for each of its two keys.
  struct ColSums {
    float of[2][terms.by_col > 0 ? terms.by_col : 1] = {};
  };

  template <bool Partial>
  __device__ void weigh(Fragment<1, m>& s, Fragment<1, m>& dp, const Reader& of, int q_tile, int stage, ColSums& sums) {
    const Int origin = of.entry.query(q_tile * m);
    KeptByKeys<User::traits.drops ? m : 0> drawn;
    if constexpr (User::traits.drops)
      drawn.draw(KeptDraws<User>(user, of.head, of.at), origin.i() + 2 * (lane & 3), first_key() + 16 * warp, lane);
    Col col[2];
    int key[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      key[r] = first_key() + 16 * warp + 8 * r + lane / 4;
      col[r] = user.col(of.head, of.at, origin, min(key[r], keys.length - 1));
    }
#pragma unroll
    for (int i = 0; i < m / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * i + 2 * (lane & 3) + e;
        const End end = end_of_column(column, stage);
        const Int q = of.entry.query(min(q_tile * m + column, of.entry.queries.length - 1));
        const Row row = user.row(of.head, of.at, q);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const Int kv = min(key[r], keys.length - 1);
          bool kept = true;
          if constexpr (Partial) {
            kept = key[r] >= end.from && key[r] <= end.to;
            if constexpr (User::traits.has_keep) kept = kept && user.keep(of.head, row, col[r], of.at, q, kv);
          }
          float &x = s[0][i][2 * r + e], &y = dp[0][i][2 * r + e];
          const auto take = [&](Flow flow, float s, float p) {
            if constexpr (has_terms) {
              if constexpr (terms.by_col > 0)
                user.by_col(sums.of[r], flow, s, p, of.head, row, col[r], of.at, origin, q, kv);
              if constexpr (terms.by_pair > 0) user.by_pair(flow, s, p, of.head, row, col[r], of.at, origin, q, kv);
            }
          };
          const Pair<User> pair{of.head, row, col[r], of.at, origin, q, kv};
          PairNumbers out;
          if constexpr (User::traits.drops)
            out = gradient_of(user, DrawnPair<User>{pair, drawn.mask(i, e, r) != 0}, of.factor, end.end, kept, {x, y},
                              take);
          else
            out = gradient_of(user, pair, of.factor, end.end, kept, {x, y}, take);
          x = out.s;
          y = out.dp;
        }
      }
  }

  __device__ void compute(const Reader& of, int q_tile, bool partial, int stage, ColSums& sums) {
    const unsigned q = shared + Shared::at.q + static_cast<unsigned>(stage * Shared::at.q_bytes),
                   grad_o = shared + Shared::at.grad_o + static_cast<unsigned>(stage * Shared::at.grad_o_bytes);
    Fragment<1, m> s, dp;
    const auto k_at = by_rows<QLine>(shared + Shared::at.k + static_cast<unsigned>(warp * 16 * QLine::pitch), lane);
    // S^T = K Q^T
    dots<Element, exact, Tile::d / per_step, 1, m>(
        s, [&](unsigned(&a)[4], int, int step) { load_blocks(a, k_at.at(0, step)); }, by_bytes<QLine>(q, lane));
    if constexpr (gives_k) {
      const auto v_at = by_rows<VLine>(shared + Shared::at.v + static_cast<unsigned>(warp * 16 * VLine::pitch), lane);
      // dP^T = V dO^T
      dots<Element, exact, Tile::dv / per_step, 1, m>(
          dp, [&](unsigned(&a)[4], int, int step) { load_blocks(a, v_at.at(0, step)); }, by_bytes<VLine>(grad_o, lane));
    } else {
      clear<1, m>(dp);
    }
    // P = exp2(S - lse), dS = P (dP - delta)
    if (partial)
      weigh<true>(s, dp, of, q_tile, stage, sums);
    else
      weigh<false>(s, dp, of, q_tile, stage, sums);
    // dV += P^T dO, dK += dS^T Q
    if constexpr (gives_v) add_product<Element, exact, 1, m, Tile::dv>(dv, s, Columns<Element, VLine>(grad_o, lane));
    if constexpr (gives_k) add_product<Element, exact, 1, m, Tile::d>(dk, dp, Columns<Element, QLine>(q, lane));
  }

  __device__ void visit(const Reader& of, const Walk& walk) {
    const bool keeps = m > static_cast<int>(threadIdx.x);
    const bool ragged = keys.length < first_key() + n;
    const auto load = [&](int i, int stage) {
      load_queries(of, walk.tile(visit_of(walk, i)), stage);
      copy_commit();
    };
    const auto end = [&](int i) {
      const int q_tile = walk.tile(visit_of(walk, i));
      return this->end(of, q_tile * m + static_cast<int>(threadIdx.x), of.entry.query(q_tile * m));
    };
    ColSums sums;
    // All warps are done with the stages of the previous reader.
    __syncthreads();
    load(0, 0);
    if (keeps) keep_end(end(0), 0);
    for (int i = 0; i < walk.count; ++i) {
      const int stage = i % Tile::stages, next = (i + 1) % Tile::stages;
      copy_wait<0>();
      __syncthreads();
      const bool more = i + 1 < walk.count;
      End ahead;
      if (more && Tile::stages > 1) {
        load(i + 1, next);
        if (keeps) ahead = end(i + 1);
      }
      const int at = visit_of(walk, i);
      compute(of, walk.tile(at), ragged || !walk.is_full(at), stage, sums);
      if (!more) break;
      if constexpr (Tile::stages == 1) {
        __syncthreads();
        load(i + 1, 0);
        if (keeps) keep_end(end(i + 1), 0);
      } else if (keeps) {
        keep_end(ahead, next);
      }
    }
    if constexpr (has_terms && terms.by_col > 0) store_sums(of, sums);
  }

  /// Four threads share a key.
  __device__ void store_sums(const Reader& of, ColSums& sums) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key() + 16 * warp + 8 * r + lane / 4;
      unsigned long long* places[terms.by_col > 0 ? terms.by_col : 1];
      const Int kv = min(key, keys.length - 1), origin = args.q_offset;
      user.places_by_col(places, of.head, user.col(of.head, of.at, origin, kv), of.at, origin, kv);
#pragma unroll
      for (int i = 0; i < terms.by_col; ++i) {
        const float sum = row_sum(sums.of[r][i]);
        if (lane % 4 == 0 && key < keys.length) add_exactly(places[i], sum);
      }
    }
  }

  // ---- the block -------------------------------------------------------------------------------------------------

  template <class Fn>
  __device__ void each_reader(Fn fn) const {
    const int readers = args.kv_shared ? args.batch : 1;
    for (int i = 0; i < readers; ++i)
      for (int g = 0; g < args.group; ++g) fn(reader(args.kv_shared ? i : b, kv_head * args.group + g));
  }

  __device__ void run() {
    if (first_key() >= keys.length) return;
    load_keys();
    clear<1, dk_width>(dk);
    clear<1, dv_width>(dv);
    each_reader([&](const Reader& of) {
      const Walk walk = walk_of(of);
      if (walk.count > 0) visit(of, walk);
    });
    copy_wait<0>();
    if constexpr (terms.removes)
      if (__any_sync(~0u, has_non_finite(dk[0]) || has_non_finite(dv[0])))
        return keys_pair_by_pair<Tile, User, Gives>(args, user, shared);
    if constexpr (gives_k) store<Tile::d>(args.grad_k, dk, Tile::width, args.scale);
    if constexpr (gives_v) store<Tile::dv>(args.grad_v, dv, Tile::width_v, 1);
  }

  template <int Width>
  __device__ void store(const Gradient& to, const Fragment<1, Width>& x, int width, float scale) const {
    if (!to.to.data) return;
    const GradientRows rows(to, b, kv_head, keys.start);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = first_key() + 16 * warp + 8 * r + lane / 4;
      if (key >= keys.length) continue;
#pragma unroll
      for (int i = 0; i < Width / 8; ++i)
        rows.put(key, 8 * i + 2 * (lane & 3), width, x[0][i][2 * r] * scale, x[0][i][2 * r + 1] * scale);
    }
  }

  /// Recomputes this warp's keys pair by pair, so that masked-out values are never multiplied.
  __device__ void pair_by_pair() const {
    const Rows80 k = rows(args.k, b, kv_head, keys.start), v = rows(args.v, b, kv_head, keys.start);
    for (int i = 0; i < 16; ++i) {
      const int key = first_key() + 16 * warp + i;
      if (key >= keys.length) return;
      const ExactRow<Tile> own(k, v, key);
      WarpRow<Tile::width> dk_row;
      WarpRow<Tile::width_v> dv_row;
      each_reader([&](const Reader& of) {
        const Rows80 q_rows = rows(args.q, of.at.b, of.at.h, of.entry.queries.start),
                     grad_o_rows = rows(args.grad_o, of.at.b, of.at.h, of.entry.queries.start);
        for (int j = 0; j < of.entry.queries.length; ++j) {
          const Int origin = of.entry.query(j / m * m), q = of.entry.query(j);
          const Row row = user.row(of.head, of.at, q);
          const Col col = user.col(of.head, of.at, origin, key);
          const End end = this->end(of, j, origin);
          bool kept = key >= end.from && key <= end.to;
          if constexpr (User::traits.has_keep) kept = kept && user.keep(of.head, row, col, of.at, q, key);
          if (!kept) continue;
          const ExactRow<Tile> other(q_rows, grad_o_rows, j);
          const Pair<User> pair{of.head, row, col, of.at, origin, q, key};
          const PairNumbers given = other.with(own);
          kept = score_keeps(user, pair, given.s);
          const PairNumbers out = gradient_of(user, pair, of.factor, end.end, kept, given, NoTerms{});
          dv_row.add(out.s, other.y);
          dk_row.add(out.dp, other.x);
        }
      });
      if (gives_k && args.grad_k.to.data) {
        const GradientRows to(args.grad_k, b, kv_head, keys.start);
        dk_row.each([&](float& x, int column) { to.put(key, column, x * args.scale); });
      }
      if (gives_v && args.grad_v.to.data) {
        const GradientRows to(args.grad_v, b, kv_head, keys.start);
        dv_row.each([&](float& x, int column) { to.put(key, column, x); });
      }
    }
  }
};

template <class Tile, class User, int Gives>
__device__ __noinline__ void keys_pair_by_pair(const BackwardArgs& args, const User& user, unsigned shared) {
  Keys80<Tile, User, Gives>(args, user, shared).pair_by_pair();
}

/// `passes`: 2 if the registers cannot hold both gradients, which then get a loop each. SharedKeys80<Tile>::at.bytes of
/// shared memory.
template <class Tile>
concept KeysTile80 = BackwardTile80<Tile> &&(Tile::n == 16 * Tile::warps && Tile::m <= 32 * Tile::warps) &&
                     (Tile::passes == 1 || Tile::passes == 2);

template <KeysTile80 Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32)
    keys_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  extern __shared__ __align__(128) unsigned char memory[];
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(memory));
  if constexpr (Tile::passes == 1) {
    Keys80<Tile, User, 3>(args, user, shared).run();
  } else {
    Keys80<Tile, User, 1>(args, user, shared).run();
    // Without a tile of queries the first pass has not waited for its keys.
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    Keys80<Tile, User, 2>(args, user, shared).run();
  }
}

}  // namespace attune

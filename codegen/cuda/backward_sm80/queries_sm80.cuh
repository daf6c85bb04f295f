// codegen/cuda/backward_sm80/queries_sm80.cuh — the portable backward of q, for any GPU since sm_80: every width,
// stride and type
//
// A block keeps a tile of queries of one head, 16 per warp, and iterates over the keys, as forward_sm80.cuh does. Keys
// and values load one tile ahead. If a row's delta is not the product of o and grad_o, a first pass sums delta and
// stores it, for keys_sm80.cuh too.
//
// Masked-out pairs are handled as in keys_sm80.cuh.
#pragma once

#include "codegen/cuda/backward_sm80/layout.cuh"
#include "codegen/cuda/contract/args.cuh"
#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/parts/entry.cuh"

namespace attune {

/// True for companions of a kernel whose tile lists are a table of visits: its tiles are visits_m queries by visits_n
/// keys.
template <class Tile>
constexpr bool reads_visits = requires {
  Tile::visits_m;
  Tile::visits_n;
};

/// Replaces a Walk, for whole warps. Callers ask for its tiles in rising order, each once; is_full() describes the last
/// one.
template <class Tile>
class VisitedKeys {
 public:
  int count = 0;

  /// `first`: the first query, of an entry that has it.
  __device__ VisitedKeys(const Entries& of, const Entry& entry, Where at, int first)
      : stride_(of.tile_stride), tiles_((entry.keys.length + visits_n - 1) / visits_n),
        end_((entry.keys.length + Tile::n - 1) / Tile::n) {
    const int head = (of.tile_batches == 1 ? 0 : at.b) * of.tile_heads + (of.tile_heads == 1 ? 0 : at.h),
              rows = (of.kv_len + visits_n - 1) / visits_n, last = min(first + Tile::m, entry.queries.length) - 1;
    words_ = of.tiles + static_cast<long long>(head) * rows * stride_ + first / Tile::visits_m;
    spans_two_ = last / Tile::visits_m > first / Tile::visits_m;
    for (int t = 0; t < tiles_; t += 32) {
      const int visited = __popc(parts(t + lane()) & all_parts);
#pragma unroll
      for (int bit = 1; bit <= of_visit; bit *= 2) count += bit * __popc(__ballot_sync(~0u, (visited & bit) != 0));
    }
  }

  __device__ int tile(int i) {
    if (i > nth_) {
      nth_ = i;
      advance();
    }
    return at_;
  }
  __device__ bool is_full(int) const { return (now_ & whole) != 0; }

 private:
  static constexpr int visits_n = Tile::visits_n, of_visit = visits_n / Tile::n;
  static_assert(visits_n % Tile::n == 0 && of_visit % 2 == 0 && Tile::m <= Tile::visits_m);
  static constexpr unsigned all_parts = (1u << of_visit) - 1, first_half = (1u << of_visit / 2) - 1, whole = 1u << 31;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  __device__ static unsigned parts_of(unsigned visit) {
    if (visit == 0) return 0;
    switch (visit & Visit::kept) {
      case Visit::whole: return all_parts | whole;
      case Visit::first_half: return first_half;
      case Visit::second_half: return all_parts & ~first_half;
      default: return all_parts;
    }
  }
  /// A bit for each visited tile of keys in tile t of the table; and `whole` if none of their pairs is masked out.
  __device__ unsigned parts(int t) const {
    if (t >= tiles_) return 0;
    const int* const at = words_ + static_cast<long long>(t) * stride_;
    unsigned out = parts_of(static_cast<unsigned>(__ldg(at)));
    if (spans_two_) {
      const unsigned other = parts_of(static_cast<unsigned>(__ldg(at + 1)));
      out = ((out | other) & all_parts) | (out & other & whole);
    }
    // Tiles past the last key.
    const int left = end_ - t * of_visit;
    return left < of_visit ? out & (whole | ((1u << left) - 1)) : out;
  }
  __device__ void advance() {
    do {
      ++at_;
      if (at_ % of_visit != 0) continue;
      int t = at_ / of_visit;
      unsigned any = 0;
      for (;; t += 32) {
        any = __ballot_sync(~0u, parts(t + lane()) != 0);
        if (any != 0 || t >= tiles_) break;
      }
      t += __ffs(static_cast<int>(any)) - 1;
      at_ = t * of_visit;
      now_ = parts(t);
    } while (!(now_ >> at_ % of_visit & 1));
  }

  const int* words_;  ///< of these queries and the first keys
  int stride_, tiles_, end_;
  bool spans_two_;  ///< the queries lie in two tiles of the table
  int nth_ = -1, at_ = -1;
  unsigned now_ = 0;
};

/// A Mod with terms by gate: sums of p dP over rows whose delta does not tell them precisely.
template <class M>
concept HasGates = Differentiable<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col, float x, Int i,
             Flow flow, float* sums, unsigned long long** places) {
  bool(m.is_told(head, row, at, i));                         // q: delta is precise
  m.by_gate(sums, flow, x, x, head, row, col, at, i, i, i);  // flow, s, p, …, origin, q, kv
  m.places_by_gate(places, head, row, at, i);                // q
};

/// Offsets into shared memory, from layout/.
template <class Tile>
struct SharedQueries80 {
  static constexpr int size = ElementOf<typename Tile::Element>::bytes;
  static constexpr QueriesLayout80 at{
      .m = Tile::m, .n = Tile::n, .d = Tile::d, .dv = Tile::dv, .stages = Tile::stages, .element = size};
};

/// A line of static shared memory, which a kernel has without asking for it at the launch.
struct alignas(128) StaticLine {
  uint4 units[8];
};

/// True if a warp keeps its queries and their grad_o in registers, and keys and values then load where these were. Read
/// again for each tile of keys, they are a third of what the products read of shared memory, which bounds them; but
/// next to sums of dq there is no room.
template <class Tile>
constexpr bool holds_queries = requires {
  requires Tile::holds_queries != 0;
};

/// Not inlined, so it does not raise the caller's register count.
template <class Tile, class User>
__device__ __noinline__ void queries_pair_by_pair(const BackwardArgs& args, const User& user, unsigned shared);

template <class Tile, class User>
struct Queries80 {
  using Element = typename Tile::Element;
  using Shared = SharedQueries80<Tile>;
  using Head = typename User::Head;
  using Row = typename User::Row;
  using Col = typename User::Col;
  static constexpr int size = Shared::size, per_step = 32 / size, m = Tile::m, n = Tile::n;
  static constexpr bool exact = Tile::exact && size == 4;
  using QLine = Lines<Tile::d * size>;
  using VLine = Lines<Tile::dv * size>;
  /// Of keys and values.
  static constexpr int stages = holds_queries<Tile> ? 2 : Tile::stages;
  static_assert(!holds_queries<Tile> || (n <= m && Tile::stages == 1));
  static constexpr GradientTraits terms = User::gradient;

  /// `terms`: of terms by row and by pair alone, for kernels that do not sum them themselves: sum_pairs_sm80.cuh.
  enum class Pass { delta, gradient, terms };

  const BackwardArgs& args;
  const User& user;
  const unsigned shared;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  int tile, tiles;
  Entry entry;
  Where at{};
  Int origin = 0;
  Head head{};
  float factor = 1;
  int q[2];  ///< this thread's two queries, both clamped to the last query of the sequence
  Row row[2];
  Reach<User> reach[2];
  RowEnd end[2];
  Fragment<1, Tile::d> dq;
  /// Operands of a warp's 16 rows, if it holds them.
  template <int steps>
  using Held = unsigned[holds_queries<Tile> ? steps : 1][4];
  Held<Tile::d / per_step> held_q;
  Held<Tile::dv / per_step> held_grad_o;
  float head_sums[terms.by_head > 0 ? terms.by_head : 1] = {};
  float row_sums[2][terms.by_row > 0 ? terms.by_row : 1] = {};
  float gate_sums[2][terms.by_gate > 0 ? terms.by_gate : 1] = {};
  bool asks_pairs[2] = {};  ///< the row's terms by gate are summed from pairs, not from delta

  /// Tiles of a section of heads run next to each other, last queries first: with a causal mask these take longest.
  __device__ Queries80(const BackwardArgs& args, const User& user, unsigned shared)
      : Queries80(args, user, shared, place(args, blockIdx.x)) {}

  struct Place {
    int b, h, tile, tiles;
  };
  __device__ static Place place(const BackwardArgs& args, long long block) {
    const int sets = args.q_heads * args.batch, section = max(args.section, 1), tiles = (args.q_len + m - 1) / m;
    const long long of_section = static_cast<long long>(tiles) * section;
    const int before = static_cast<int>(block / of_section) * section, here = min(section, sets - before),
              within = static_cast<int>(block % of_section), set = before + within % here;
    return {set / args.q_heads, set % args.q_heads, tiles - 1 - within / here, tiles};
  }
  __device__ Queries80(const BackwardArgs& args, const User& user, unsigned shared, Place place)
      : args(args), user(user), shared(shared), tile(place.tile), tiles(place.tiles),
        entry(entry_of<Tile>(args, place.b)), at(entry.at(place.b, place.h)), origin(entry.query(place.tile * m)),
        head(user.head(at)), factor(factor_of(user, head)), reach{reach_of(0), reach_of(1)} {}

  __device__ int first_query() const { return tile * m; }
  /// This thread's row r, which may lie past the last query.
  __device__ int query(int r) const { return first_query() + 16 * warp + 8 * r + lane / 4; }
  __device__ bool exists(int r) const { return query(r) < entry.queries.length; }
  __device__ Reach<User> reach_of(int r) {
    q[r] = entry.query(min(query(r), entry.queries.length - 1));
    row[r] = user.row(head, at, q[r]);
    return {user, head, row[r], at, q[r], 0};
  }
  __device__ Rows80 rows(const Strided& t, int h, int start) const { return rows_of<Element>(t, at.b, h, start); }
  __device__ Rows80 key_rows(const Strided& t) const {
    return rows_of<Element>(t, args.kv_shared ? 0 : at.b, at.h / args.group, entry.keys.start);
  }

  __device__ void load_queries() {
    load_rows<Tile, m, Tile::d * size, Tile::width * size, false>(
        shared + Shared::at.q, rows(args.q, at.h, entry.queries.start), first_query(), entry.queries.length);
    load_rows<Tile, m, Tile::dv * size, Tile::width_v * size, false>(
        shared + Shared::at.grad_o, rows(args.grad_o, at.h, entry.queries.start), first_query(), entry.queries.length);
  }
  __device__ unsigned keys_at(int stage) const {
    if constexpr (holds_queries<Tile>) return shared + (stage == 0 ? Shared::at.k : 0);
    return shared + Shared::at.k + static_cast<unsigned>(stage * Shared::at.k_bytes);
  }
  __device__ unsigned values_at(int stage) const {
    if constexpr (holds_queries<Tile>) return keys_at(stage) + Shared::at.k_bytes;
    return shared + Shared::at.v + static_cast<unsigned>(stage * Shared::at.v_bytes);
  }
  __device__ void load_keys(int kv_tile, int stage) {
    load_rows<Tile, n, Tile::d * size, Tile::width * size, false>(keys_at(stage), key_rows(args.k), kv_tile * n,
                                                                  entry.keys.length);
    load_rows<Tile, n, Tile::dv * size, Tile::width_v * size, false>(values_at(stage), key_rows(args.v), kv_tile * n,
                                                                     entry.keys.length);
  }

  __device__ auto walk() const {
    if constexpr (User::traits.listed && reads_visits<Tile>)
      return VisitedKeys<Tile>(args, entry, at, first_query());
    else
      return walk_of<Tile>(args, user, entry, at, head,
                           {first_query(), min(first_query() + m, entry.queries.length), tile, tiles});
  }

  __device__ void find_ends() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      end[r] = no_row();
      if (exists(r))
        end[r] = end_of(args, user, Query<User>{head, row[r], at, origin, q[r]}, entry.queries.start + query(r));
    }
  }

  // ---- a tile of pairs -------------------------------------------------------------------------------------------

  template <Pass P, bool Partial>
  __device__ void weigh(Fragment<1, n>& s, Fragment<1, n>& dp, int kv_tile, float (&deltas)[2]) {
    KeptByQueries<User::traits.drops ? n : 0> drawn;
    if constexpr (User::traits.drops)
      drawn.template draw<n % 16 == 0>(KeptDraws<User>(user, head, at), lane & 1 ? q[1] : q[0], kv_tile * n, lane);
#pragma unroll
    for (int i = 0; i < n / 8; ++i)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = kv_tile * n + 8 * i + 2 * (lane & 3) + e;
        const Int kv = Partial ? min(column, entry.keys.length - 1) : column;
        const Col col = user.col(head, at, origin, kv);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          bool kept = true;
          if constexpr (Partial) {
            kept = column < entry.keys.length && reach[r].holds(column) && exists(r);
            if constexpr (User::traits.has_keep) kept = kept && user.keep(head, row[r], col, at, q[r], kv);
          }
          float &x = s[0][i][2 * r + e], &y = dp[0][i][2 * r + e];
          const auto take = [&](Flow flow, float s, float p) {
            if constexpr (P == Pass::delta) {
              deltas[r] += flow.score;
            } else {
              if constexpr (P == Pass::gradient && terms.by_head > 0)
                user.by_head(head_sums, flow, s, p, head, row[r], col, at, origin, q[r], kv);
              if constexpr (P == Pass::terms && terms.by_pair > 0)
                user.by_pair(flow, s, p, head, row[r], col, at, origin, q[r], kv);
              if constexpr (P == Pass::terms && terms.by_gate > 0)
                if (asks_pairs[r]) user.by_gate(gate_sums[r], flow, s, p, head, row[r], col, at, origin, q[r], kv);
              if constexpr (terms.by_row > 0)
                user.by_row(row_sums[r], flow, s, p, head, row[r], col, at, origin, q[r], kv);
            }
          };
          // With delta = 0, dS is P dP.
          const RowEnd of_row{end[r].under, P == Pass::delta ? 0 : end[r].delta};
          const Pair<User> pair{head, row[r], col, at, origin, q[r], kv};
          if constexpr (User::traits.drops)
            y = gradient_of(user, DrawnPair<User>{pair, drawn.holds(i, r, e)}, factor, of_row, kept, {x, y}, take).dp;
          else
            y = gradient_of(user, pair, factor, of_row, kept, {x, y}, take).dp;
        }
      }
  }

  /// This warp's rows in shared memory.
  __device__ auto q_rows() const {
    return by_rows<QLine>(shared + Shared::at.q + static_cast<unsigned>(warp * 16 * QLine::pitch), lane);
  }
  __device__ auto grad_o_rows() const {
    return by_rows<VLine>(shared + Shared::at.grad_o + static_cast<unsigned>(warp * 16 * VLine::pitch), lane);
  }
  __device__ void hold_queries() {
    const auto hold = [](auto& to, const auto& rows) {
#pragma unroll
      for (int step = 0; step < static_cast<int>(sizeof(to) / sizeof(to[0])); ++step)
        load_blocks(to[step], rows.at(0, step));
    };
    hold(held_q, q_rows());
    hold(held_grad_o, grad_o_rows());
  }

  template <Pass P>
  __device__ void compute(int kv_tile, bool partial, int stage, float (&deltas)[2]) {
    const unsigned k = keys_at(stage), v = values_at(stage);
    Fragment<1, n> s, dp;
    const auto from = [](const auto& held, const auto& rows) {
      return [&](unsigned(&a)[4], int, int step) {
        if constexpr (holds_queries<Tile>)
          for (int i = 0; i < 4; ++i) a[i] = held[step][i];
        else
          load_blocks(a, rows.at(0, step));
      };
    };
    const auto q_at = q_rows();
    const auto grad_o_at = grad_o_rows();
    // S = Q K^T, dP = dO V^T
    dots<Element, exact, Tile::d / per_step, 1, n>(s, from(held_q, q_at), by_bytes<QLine>(k, lane));
    dots<Element, exact, Tile::dv / per_step, 1, n>(dp, from(held_grad_o, grad_o_at), by_bytes<VLine>(v, lane));
    // P = exp2(S - lse), dS = P (dP - delta)
    if (partial)
      weigh<P, true>(s, dp, kv_tile, deltas);
    else
      weigh<P, false>(s, dp, kv_tile, deltas);
    // dQ += dS K
    if constexpr (P == Pass::gradient)
      add_product<Element, exact, 1, n, Tile::d>(dq, dp, Columns<Element, QLine>(k, lane));
  }

  /// `walk`: a Walk, or VisitedKeys.
  template <Pass P, class W>
  __device__ void visit(W& walk, float (&deltas)[2]) {
    const auto load = [&](int i) {
      load_keys(walk.tile(i), i % stages);
      copy_commit();
    };
    __syncthreads();
    load(0);
    if constexpr (holds_queries<Tile>) {
      copy_wait<0>();
      __syncthreads();
      hold_queries();
    }
    for (int i = 0; i < walk.count; ++i) {
      copy_wait<0>();
      __syncthreads();
      const bool more = i + 1 < walk.count;
      const int kv_tile = walk.tile(i);
      const bool partial = !walk.is_full(i) || (kv_tile + 1) * n > entry.keys.length;
      if (more && stages > 1) load(i + 1);
      compute<P>(kv_tile, partial, i % stages, deltas);
      if (more && stages == 1) {
        __syncthreads();
        load(i + 1);
      }
    }
  }

  // ---- the block -------------------------------------------------------------------------------------------------

  __device__ void run() {
    if (first_query() >= entry.queries.length) return;
    auto walk = this->walk();
    float deltas[2] = {};
    clear<1, Tile::d>(dq);
    if (walk.count > 0) load_queries();
    find_ends();
    if constexpr (!terms.delta_of_o) {
      if (walk.count > 0) visit<Pass::delta>(walk, deltas);
      store_deltas(deltas);
    }
    if (walk.count > 0) visit<Pass::gradient>(walk, deltas);
    store_sums();
    if (!args.grad_q.to.data) return;
    if constexpr (terms.removes)
      if (__any_sync(~0u, has_non_finite(dq[0]))) return queries_pair_by_pair<Tile>(args, user, shared);
    store();
  }

  /// The preprocess (rows.cuh) has left -grad_lse in delta.
  __device__ void store_deltas(const float (&deltas)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float sum = row_sum(deltas[r]);
      if (!exists(r)) continue;
      float* const delta = row_of(args.delta, at.b, at.h, entry.queries.start + query(r));
      // An empty row has no delta, and what is stored for it stays.
      if (end[r].under != infinity) end[r].delta += sum;
      __syncwarp(__activemask());
      if (lane % 4 == 0) *delta = end[r].under == infinity ? *delta : end[r].delta;
    }
  }

  /// Recomputes S and dP for a kernel that computes the rest of the backward; sums delta, or the terms by row and by
  /// pair.
  template <Pass pass>
  __device__ void sum_once_more() {
    if (first_query() >= entry.queries.length) return;
    auto walk = this->walk();
    if (walk.count == 0) return;
    if constexpr (pass == Pass::terms && terms.by_gate > 0) {
      static_assert(HasGates<User>);
#pragma unroll
      for (int r = 0; r < 2; ++r) asks_pairs[r] = exists(r) && !user.is_told(head, row[r], at, q[r]);
      if (terms.by_row == 0 && terms.by_pair == 0 && !__syncthreads_or(asks_pairs[0] || asks_pairs[1])) return;
    }
    float deltas[2] = {};
    load_queries();
    find_ends();
    visit<pass>(walk, deltas);
    if constexpr (pass == Pass::delta)
      store_deltas(deltas);
    else
      store_row_sums();
  }

  /// Adds up the sums of each row over its lanes, and adds the result to the exact sums at `places`, if the row `adds`.
  template <int count, class Places, class Adds>
  __device__ void add_row_sums(const float (&sums)[2][count], const Places& places, const Adds& adds) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      unsigned long long* to[count];
      places(to, r);
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float sum = row_sum(sums[r][i]);
        if (lane % 4 == 0 && adds(r)) add_exactly(to[i], sum);
      }
    }
  }
  __device__ void store_row_sums() {
    if constexpr (terms.by_row > 0)
      add_row_sums(
          row_sums, [&](unsigned long long** to, int r) { user.places_by_row(to, head, row[r], at, q[r]); },
          [&](int r) { return exists(r); });
    if constexpr (terms.by_gate > 0)
      add_row_sums(
          gate_sums, [&](unsigned long long** to, int r) { user.places_by_gate(to, head, row[r], at, q[r]); },
          [&](int r) { return asks_pairs[r]; });
  }
  __device__ void store_sums() {
    store_row_sums();
    if constexpr (terms.by_head > 0) {
      unsigned long long* places[terms.by_head > 0 ? terms.by_head : 1];
      user.places_by_head(places, head, at);
#pragma unroll
      for (int i = 0; i < terms.by_head; ++i) {
        const float sum = warp_sum(head_sums[i]);
        if (lane == 0) add_exactly(places[i], sum);
      }
    }
    if constexpr (terms.by_sink) {
      // A sink has no value, so its gradient is its probability times -delta.
      const float sink = user.sink(head, at);
      float sum = 0;
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (lane % 4 == 0 && exists(r) && sink != -infinity) {
          const int position = entry.queries.start + query(r);
          sum -= power_of_two((sink - *row_of(args.lse, at.b, at.h, position)) * (1 / ln2)) *
                 *row_of(args.delta, at.b, at.h, position);
        }
      sum = warp_sum(sum);
      if (lane == 0 && sink != -infinity) user.by_sink(sum, head, at);
    }
  }

  __device__ void store() const {
    const GradientRows to(args.grad_q, at.b, at.h, entry.queries.start);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (!exists(r)) continue;
#pragma unroll
      for (int i = 0; i < Tile::d / 8; ++i)
        to.put(query(r), 8 * i + 2 * (lane & 3), Tile::width, dq[0][i][2 * r] * args.scale,
               dq[0][i][2 * r + 1] * args.scale);
    }
  }

  /// Recomputes this warp's queries pair by pair, so that masked-out values are never multiplied. Terms that another
  /// kernel would have summed along diagonals are added here.
  __device__ void pair_by_pair() const {
    const Rows80 q_rows = rows(args.q, at.h, entry.queries.start),
                 grad_o_rows = rows(args.grad_o, at.h, entry.queries.start), k_rows = key_rows(args.k),
                 v_rows = key_rows(args.v);
    const GradientRows to(args.grad_q, at.b, at.h, entry.queries.start);
    for (int i = 0; i < 16; ++i) {
      const int position = first_query() + 16 * warp + i;
      if (position >= entry.queries.length) return;
      const Int q = entry.query(position);
      const Row row = user.row(head, at, q);
      const Reach<User> reach(user, head, row, at, q, 0);
      const RowEnd end = end_of(args, user, Query<User>{head, row, at, origin, q}, entry.queries.start + position);
      const ExactRow<Tile> own(q_rows, grad_o_rows, position);
      WarpRow<Tile::width> dq_row;
      for (int kv = max(reach.from, 0); kv <= reach.to; ++kv) {
        const Col col = user.col(head, at, origin, kv);
        if constexpr (User::traits.has_keep)
          if (!user.keep(head, row, col, at, q, kv)) continue;
        const ExactRow<Tile> other(k_rows, v_rows, kv);
        const auto take = [&](Flow flow, float s, float p) {
          if constexpr (terms.by_diagonal > 0)
            if (lane == 0) user.by_pair_of_diagonal(flow, s, p, head, row, col, at, origin, q, kv);
        };
        const Pair<User> pair{head, row, col, at, origin, q, kv};
        const PairNumbers given = own.with(other);
        const bool kept = score_keeps(user, pair, given.s);
        const PairNumbers out = gradient_of(user, pair, factor, end, kept, given, take);
        dq_row.add(out.dp, other.x);
      }
      if (args.grad_q.to.data) dq_row.each([&](float& x, int column) { to.put(position, column, x * args.scale); });
    }
  }
};

template <class Tile, class User>
__device__ __noinline__ void queries_pair_by_pair(const BackwardArgs& args, const User& user, unsigned shared) {
  Queries80<Tile, User>(args, user, shared).pair_by_pair();
}

/// SharedQueries80<Tile>::at.bytes of shared memory.
template <class Tile>
concept QueriesTile80 = BackwardTile80<Tile> && Tile::m == 16 * Tile::warps;

template <QueriesTile80 Tile, class User>
__global__ void __launch_bounds__(Tile::warps * 32)
    queries_sm80(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  extern __shared__ __align__(128) unsigned char memory[];
  Queries80<Tile, User>(args, user, static_cast<unsigned>(__cvta_generic_to_shared(memory))).run();
}

}  // namespace attune

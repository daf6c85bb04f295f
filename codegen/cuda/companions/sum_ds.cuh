// codegen/cuda/companions/sum_ds.cuh — computes gradients from the dS that a backward has stored: those of dense
// biases, and sums along diagonals in the same call
//
// Each element of a dense bias's gradient is the sum of dS times a factor over the batch entries and heads that share
// it, in their order, in f32, and is rounded once. If the backward has found non-finite values, the kernel recomputes
// dS pair by pair: masked-out pairs then add 0, even if they hold NaN.
//
// The backward writes no dS of tiles that it does not visit, and nothing clears it before: it is not read, and counts
// as 0. Both kernels find these tiles by the same functions (entry.cuh). If dS already is the gradient, these zeros are
// all that is stored.
//
// Tile: that kernel's. Blocks of sum_ds_threads share the elements of this launch's keys; then its distances q - kv,
// one a thread.
#pragma once

#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// A Mod whose dS is stored: the gradients of captured tensors are dS times a factor, summed over batch entries or
/// heads that share elements.
template <class M>
concept StoresDs = Differentiable<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col, float x, Int i) {
  StoredDs(m.stored_ds);
  SumOfDs(m.sums_of_ds[0]);
  x = m.ds_factor(0, head, row, col, at, i, i, i);  // the term, ..., origin, q, kv
};

/// A Mod that also has terms of stored dS along diagonals.
template <class M>
concept SumsDistances = StoresDs<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, typename M::Col col, float x, Int i) {
  m.by_distance(x, head, row, col, at, i, i);  // the sum, …, q, kv
};

/// The dS of a launch's keys.
template <class Tile, class User>
struct DsOfKeys {
  using Element = typename Tile::Element;

  const BackwardArgs& args;
  const User& user;

  __device__ int first_key() const { return user.stored_ds.first_tile * Tile::n; }
  __device__ int end_key() const { return first_key() + user.stored_ds.tiles * Tile::n; }

  static __device__ bool has(const Entry& entry, int row, int key) {
    return row >= 0 && row < entry.queries.length && key < entry.keys.length;
  }
  /// True if dS of these tiles has been written. The entry has the first pair of them.
  __device__ bool is_stored(const Entry& entry, const Where& at, int q_tile, int kv_tile) const {
    return are_visited<Tile>(args, user, entry, at, user.head(at), q_tile, kv_tile);
  }
  /// The dS of a query, from key on, which is one of this launch.
  __device__ const Element* at(int b, int h, int row, int key) const {
    const Strided& ds = user.stored_ds.ds;
    const auto* const to = static_cast<const Element*>(ds.data) + (key - first_key());
    if constexpr (is_packed<Tile>) {
      const long long tile = static_cast<long long>(h) * args.q_places + place_of<Tile::m>(args.q_starts, b);
      return to + (tile * Tile::m + row) * ds.position;
    }
    return to + b * ds.batch + h * ds.head + row * ds.position;
  }

  /// dS of a pair, computed from its operands. Not inlined: the kernel has 80 to 96 registers, and had 100 to 104.
  __device__ __noinline__ float recomputed(const Entry& entry, const typename User::Head& head, const Where& at,
                                           int row, int key) const {
    const Int q = entry.query(row), origin = entry.query(0), kv = key;
    const auto of_row = user.row(head, at, q);
    const auto of_col = user.col(head, at, origin, kv);
    const Reach<User> reach(user, head, of_row, at, q, 0);
    bool kept = key >= reach.from && key <= reach.to;
    if constexpr (User::traits.has_keep) kept = kept && user.keep(head, of_row, of_col, at, q, kv);
    if (!kept) return 0;
    const int b = args.kv_shared ? 0 : at.b, kv_head = at.h / args.group;
    const auto dot = [&](const Rows80& x, const Rows80& y, int width) {
      float sum = 0;
      for (int i = 0; i < width; ++i) sum += element<Element>(x, row, i) * element<Element>(y, key, i);
      return sum;
    };
    const auto of_q = [&](const Strided& t) { return rows_of<Element>(t, at.b, at.h, entry.queries.start); };
    const auto of_kv = [&](const Strided& t) { return rows_of<Element>(t, b, kv_head, entry.keys.start); };
    const PairNumbers given{dot(of_q(args.q), of_kv(args.k), Tile::width),
                            dot(of_q(args.grad_o), of_kv(args.v), Tile::width_v)};
    const Pair<User> pair{head, of_row, of_col, at, origin, q, kv};
    const RowEnd end = end_of(args, user, Query<User>{head, of_row, at, origin, q}, entry.queries.start + row);
    return gradient_of(user, pair, factor_of(user, head), end, score_keeps(user, pair, given.s), given, NoTerms{}).dp;
  }
};

/// Keys of a thread, 16 bytes of dS; the threads of a row of a tile; the rows that a block has at once.
constexpr int ds_each = 8;
template <class Tile>
constexpr int ds_lanes = Tile::n / ds_each;
template <class Tile>
constexpr int ds_rows = sum_ds_threads / ds_lanes<Tile>;
/// Loads of 16 bytes that a thread has under way: of as many rows, or where rows are few, of as many terms.
constexpr int ds_loads = 4;

/// The gradient of the nth dense bias.
template <class Tile, class User, int nth_sum>
struct SumDs : DsOfKeys<Tile, User> {
  using Element = typename Tile::Element;
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;
  static constexpr int each = ds_each;

  __device__ const SumOfDs& sum() const { return user.sums_of_ds[nth_sum]; }

  /// What dS of a query's keys is multiplied by.
  __device__ float factor(const Entry& entry, const Where& at, int row, int key) const {
    const Int q = entry.query(row), origin = entry.query(0), kv = key;
    const auto head = user.head(at);
    return user.ds_factor(nth_sum, head, user.row(head, at, q), user.col(head, at, origin, kv), at, origin, q, kv);
  }

  /// Adds the terms of eight keys.
  __device__ void add(float (&sums)[each], const uint4& x, const Entry& entry, const Where& at, int row,
                      int key) const {
    const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float ds = i % 2 ? high_of<Element>(words[i / 2]) : low_of<Element>(words[i / 2]);
      // A pair that adds nothing does so even if its factor is infinite or NaN.
      sums[i] += ds == 0.0f ? 0.0f : ds * factor(entry, at, row, min(key + i, at.kv_len - 1));
    }
  }

  __device__ void store(long long offset, float x) const {
    const Gradient& to = sum().to;
    if (to.type == Stored::f32)
      static_cast<float*>(to.to.data)[offset] = x;
    else
      static_cast<unsigned short*>(to.to.data)[offset] = static_cast<unsigned short>(
          to.type == Stored::bf16 ? pack<bf16>(x, 0) : pack<f16>(x, 0));
  }
  __device__ void store(long long offset, int count, const float (&x)[each]) const {
    const Gradient& to = sum().to;
    const bool wide = to.type == Stored::f32, bf = to.type == Stored::bf16;
    char* const at = static_cast<char*>(to.to.data) + offset * (wide ? 4 : 2);
    if (count < each || to.to.element != 1 || (reinterpret_cast<unsigned long long>(at) & 15) != 0) {
#pragma unroll
      for (int i = 0; i < each; ++i)
        if (i < count) store(offset + i * to.to.element, x[i]);
      return;
    }
    if (wide) {
#pragma unroll
      for (int i = 0; i < each; i += 4)
        global_put(at + 4 * i, uint4{__float_as_uint(x[i]), __float_as_uint(x[i + 1]), __float_as_uint(x[i + 2]),
                                     __float_as_uint(x[i + 3])});
      return;
    }
    unsigned words[each / 2];
#pragma unroll
    for (int i = 0; i < each; i += 2) words[i / 2] = bf ? pack<bf16>(x[i], x[i + 1]) : pack<f16>(x[i], x[i + 1]);
    global_put(at, uint4{words[0], words[1], words[2], words[3]});
  }

  /// The batch entries or heads that share an element.
  struct Sharers {
    int begin, end;
    __device__ Sharers(const SumOfDs::Groups& groups, int nth, int all)
        : begin(min(max(nth * groups.size - groups.before, 0), all)),
          end(min(max((nth + 1) * groups.size - groups.before, 0), all)) {}
    __device__ int count() const { return end - begin; }
  };

  /// An element, from operands.
  __device__ float sum_again(const Sharers& batch, const Sharers& heads, int row, int key) const {
    float sum = 0;
#pragma unroll 1
    for (int b = batch.begin; b < batch.end; ++b)
#pragma unroll 1
      for (int h = heads.begin; h < heads.end; ++h) {
        const Entry entry = entry_of<Tile>(args, b);
        if (!this->has(entry, row, key)) continue;
        const Where at = entry.at(b, h);
        const float ds = this->recomputed(entry, user.head(at), at, row, key);
        sum += ds == 0.0f ? 0.0f : ds * factor(entry, at, row, key);
      }
    return sum;
  }

  /// Stores elements of ds_rows * `rows` queries from `first` on, which lie in one tile, by a tile of keys; `set`: of
  /// batch entries and heads. Elements without pairs are 0, as those beyond the last key or query.
  template <int rows>
  __device__ void store_part(int first, int tile, int set, bool again) const {
    const SumOfDs& its = sum();
    const Strided& to = its.to.to;
    const int of_batch = set / its.heads.count, of_heads = set - of_batch * its.heads.count;
    const Sharers batch(its.batch, of_batch, args.batch), heads(its.heads, of_heads, args.q_heads);
    const int thread = static_cast<int>(threadIdx.x), row = first + thread / ds_lanes<Tile>,
              key = tile * Tile::n + each * (thread % ds_lanes<Tile>), position = row + args.q_offset,
              end = this->end_key() < args.kv_len ? this->end_key() : its.columns, count = min(end - key, each);
    const long long offset = of_batch * to.batch + of_heads * to.head + position * to.position + key * to.element;
    // The rth of this thread's rows, ds_rows apart.
    const auto exists = [&](int r) {
      const int its_position = position + r * ds_rows<Tile>;
      return its_position >= 0 && its_position < its.rows && count > 0;
    };
    if (again) {
#pragma unroll 1
      for (int r = 0; r < rows; ++r)
#pragma unroll 1
        for (int i = 0; exists(r) && i < count; ++i)
          store(offset + r * ds_rows<Tile> * to.position + i * to.element,
                sum_again(batch, heads, row + r * ds_rows<Tile>, key + i));
      return;
    }
    constexpr int at_once = ds_loads / rows;  // terms
    float sums[rows][each] = {};
    const int terms = batch.count() * heads.count();
    int b = batch.begin, h = heads.begin;
#pragma unroll 1
    for (int term = 0; term < terms; term += at_once) {
      Entry entries[at_once];
      Where at[at_once];
      uint4 x[at_once][rows];
      bool any = false;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const Entry& entry = entries[i] = entry_of<Tile>(args, b);
        at[i] = entry.at(b, h);
        const bool is_stored = term + i < terms && this->has(entry, first, tile * Tile::n) &&
                               this->is_stored(entry, at[i], first / Tile::m, tile);
        any = any || is_stored;
        const Element* const line = this->at(b, h, row, key);
#pragma unroll
        for (int r = 0; r < rows; ++r)
          x[i][r] = is_stored && !its.is_ds && this->has(entry, row + r * ds_rows<Tile>, key)
                        ? __ldg(reinterpret_cast<const uint4*>(line + r * ds_rows<Tile> * user.stored_ds.ds.position))
                        : uint4{};
        // Behind the last term, the last one again.
        if (term + i + 1 < terms && ++h == heads.end) h = heads.begin, ++b;
      }
      if (!any) continue;
      if (its.is_ds) return;
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int r = 0; r < rows; ++r) add(sums[r], x[i][r], entries[i], at[i], row + r * ds_rows<Tile>, key);
    }
#pragma unroll
    for (int r = 0; r < rows; ++r)
      if (exists(r)) store(offset + r * ds_rows<Tile> * to.position, count, sums[r]);
  }
};

/// The gradients of all dense biases.
template <class Tile, class User>
struct SumsOfDs : DsOfKeys<Tile, User> {
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;
  static constexpr int count = User::gradient.by_ds;

  /// The sets of batch entries and heads of a sum; none if dS is its result.
  __device__ int sets_of(const SumOfDs& its, bool again) const {
    return its.is_ds && !again && !User::traits.skips ? 0 : its.batch.count * its.heads.count;
  }
  template <int rows, int nth = 0>
  __device__ void store_part(int first, int tile, int set, bool again) const {
    const int sets = sets_of(user.sums_of_ds[nth], again);
    if (set < sets) return SumDs<Tile, User, nth>{args, user}.template store_part<rows>(first, tile, set, again);
    if constexpr (nth + 1 < count) store_part<rows, nth + 1>(first, tile, set - sets, again);
  }

  /// Parts of the same tiles follow one another, so that sums that read the same dS find it in the cache.
  struct Parts {
    int sets = 0, positions = 0, first_tile, tiles;
    /// Of this many queries, `before` of them ahead of the first query.
    struct Blocks {
      int before, count;
    };
    __device__ Blocks blocks(int queries, int q_offset) const {
      const int before = (q_offset + queries - 1) / queries;
      return {before, before + (positions - q_offset + queries - 1) / queries};
    }
  };
  __device__ Parts parts(bool again) const {
    Parts out{.first_tile = user.stored_ds.first_tile, .tiles = user.stored_ds.tiles};
    int columns = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const SumOfDs& its = user.sums_of_ds[i];
      const int sets = sets_of(its, again);
      if (sets == 0) continue;
      out.sets += sets;
      out.positions = max(out.positions, its.rows);
      columns = max(columns, its.columns);
    }
    // Columns beyond the last key belong to its tile's launch.
    if (this->end_key() >= args.kv_len) out.tiles = (columns + Tile::n - 1) / Tile::n - out.first_tile;
    return out;
  }
  template <int rows>
  __device__ void run(const Parts& all, bool again) const {
    constexpr int queries = rows * ds_rows<Tile>;
    static_assert(Tile::m % queries == 0);
    const auto blocks = all.blocks(queries, args.q_offset);
    const int stride = static_cast<int>(gridDim.x);
    int set = static_cast<int>(blockIdx.x), place = set / all.sets;
    set -= place * all.sets;
    while (place < blocks.count * all.tiles) {
      const int block = place / all.tiles, tile = place - block * all.tiles;
      store_part<rows>((block - blocks.before) * queries, all.first_tile + tile, set, again);
      set += stride;
      place += set / all.sets;
      set %= all.sets;
    }
  }
  __device__ void run() const {
    const bool again = *args.non_finite != 0;
    const Parts all = parts(again);
    if (all.sets == 0) return;
    const long long many = static_cast<long long>(all.blocks(ds_loads * ds_rows<Tile>, args.q_offset).count) *
                           all.tiles * all.sets;
    if (many < gridDim.x)
      run<1>(all, again);
    else
      run<ds_loads>(all, again);
  }
};

/// Sums along diagonals: what the pairs of a head and a distance q - kv add to tensors.
template <class Tile, class User>
struct SumDistances : DsOfKeys<Tile, User> {
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;

  /// A block has sum_ds_threads distances of a head.
  __device__ void add(const Entry& entry, const Where& at, int nth, bool again) const {
    constexpr int at_once = 16;
    static_assert(Tile::m % at_once == 0 && Tile::m <= Tile::n);
    const int rows = entry.queries.length, begin = this->first_key(), end = min(this->end_key(), entry.keys.length);
    if (rows == 0 || end <= begin) return;
    const auto head = user.head(at);
    const int least = 1 - end, thread = static_cast<int>(threadIdx.x), distance = least + nth * sum_ds_threads + thread,
              of_warp = distance - thread % 32, most = rows - 1 - begin;
    // Lanes read neighbouring keys of one row after another.
    const int first = max(0, of_warp + begin), last = min(rows, of_warp + 31 + end);
    double sum = 0;
#pragma unroll 1
    for (int tile = first / Tile::m; tile * Tile::m < last; ++tile) {
      // This distance's keys of a tile of queries, which lie in two tiles of keys at most.
      const int from = tile * Tile::m, before = from - distance;
      int key_begin = max(before, begin), key_end = min(min(before + Tile::m, rows - distance), end);
      if (!again && key_begin < key_end) {
        const int kv_tile = key_begin / Tile::n, middle = (kv_tile + 1) * Tile::n;
        if (!this->is_stored(entry, at, tile, kv_tile)) key_begin = middle;
        if (key_end > middle && !this->is_stored(entry, at, tile, kv_tile + 1)) key_end = middle;
      }
      if (again) {
#pragma unroll 1
        for (int key = key_begin; key < key_end; ++key)
          sum += static_cast<double>(this->recomputed(entry, head, at, distance + key, key));
        continue;
      }
      if (!__any_sync(~0u, key_begin < key_end)) continue;
#pragma unroll 1
      for (int row = 0; row < Tile::m; row += at_once) {
        float part = 0;
#pragma unroll
        for (int i = 0; i < at_once; ++i) {
          const int key = before + row + i;
          if (key >= key_begin && key < key_end)
            part += low_of<typename Tile::Element>(
                __ldg(reinterpret_cast<const unsigned short*>(this->at(at.b, at.h, from + row + i, key))));
        }
        sum += static_cast<double>(part);
      }
    }
    // Any pair of this distance will do.
    const int nearest = min(distance, most), of_key = max(begin, -nearest);
    const Int q = entry.query(nearest + of_key), kv = entry.key(of_key);
    user.by_distance(distance <= most ? static_cast<float>(sum) : 0.0f, head, user.row(head, at, q),
                     user.col(head, at, entry.query(0), kv), at, q, kv);
  }

  __device__ void run() const {
    static_assert(SumsDistances<User>);
    const bool again = *args.non_finite != 0;
    const int distances = args.q_len + user.stored_ds.tiles * Tile::n - 1,
              chunks = (distances + sum_ds_threads - 1) / sum_ds_threads;
    const long long count = static_cast<long long>(args.batch) * args.q_heads * chunks;
    for (long long nth = blockIdx.x; nth < count; nth += gridDim.x) {
      const int chunk = static_cast<int>(nth % chunks), set = static_cast<int>(nth / chunks), b = set / args.q_heads;
      const Entry entry = entry_of<Tile>(args, b);
      add(entry, entry.at(b, set % args.q_heads), chunk, again);
    }
  }
};

template <class Tile, class User>
__global__ void __launch_bounds__(sum_ds_threads)
    sum_ds(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  static_assert(StoresDs<User>);
  let_next_start();
  wait_for_kernel_before();
  SumsOfDs<Tile, User>{args, user}.run();
  if constexpr (User::gradient.by_distance > 0) SumDistances<Tile, User>{args, user}.run();
}

}  // namespace attune

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
/// Loads of 16 bytes that a thread has under way: of ds_most_rows rows and two terms, or where rows are few, of one and
/// four terms. With four rows ptxas keeps 80 registers by adding one row before it loads the next.
constexpr int ds_loads = 4, ds_most_rows = 2;
/// Tiles of keys that a block takes one after another where there are many: finding a part's place takes as many
/// instructions as a tile of keys.
constexpr int ds_across = 4;
/// If an element has this many terms or more, each part has only one tile of keys, so that the parts of all sums take
/// about the same time.
constexpr int ds_many_terms = 8;

/// The gradient of the nth dense bias. `nth_sum` is no template argument: with separate code for each bias, ptxas needs
/// more registers than three blocks of a multiprocessor have.
template <class Tile, class User>
struct SumDs : DsOfKeys<Tile, User> {
  using Element = typename Tile::Element;
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;
  static constexpr int each = ds_each;

  int nth_sum;

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
      const float by = factor(entry, at, row, min(key + i, at.kv_len - 1));
      // A pair that adds nothing does so even if its factor is infinite or NaN. Nothing is asked of a factor of 1.
      sums[i] += ds == 0.0f && !finite(by) ? 0.0f : ds * by;
    }
  }

  /// The size of an element in bytes.
  __device__ int size() const { return sum().to.type == Stored::f32 ? 4 : 2; }
  __device__ void store(char* at, float x) const {
    const Gradient& to = sum().to;
    if (to.type == Stored::f32)
      *reinterpret_cast<float*>(at) = x;
    else
      *reinterpret_cast<unsigned short*>(at) = static_cast<unsigned short>(to.type == Stored::bf16 ? pack<bf16>(x, 0)
                                                                                                   : pack<f16>(x, 0));
  }
  struct Eight {
    float x[each];
  };
  /// The first `count` of eight elements. Not inlined, because it is rare, and registers are short.
  __device__ __noinline__ void store_each(char* at, int count, Eight of) const {
#pragma unroll
    for (int i = 0; i < each; ++i)
      if (i < count) store(at + i * size() * sum().to.to.element, of.x[i]);
  }
  /// Eight elements at a multiple of 16 bytes.
  __device__ void store_eight(char* at, const float (&x)[each]) const {
    const auto put_packed = [&](auto two) {
      global_put(at, uint4{two(x[0], x[1]), two(x[2], x[3]), two(x[4], x[5]), two(x[6], x[7])});
    };
    const Stored type = sum().to.type;
    if (type == Stored::bf16) return put_packed(pack<bf16>);
    if (type == Stored::f16) return put_packed(pack<f16>);
#pragma unroll
    for (int i = 0; i < each; i += 4)
      global_put(at + 4 * i, uint4{__float_as_uint(x[i]), __float_as_uint(x[i + 1]), __float_as_uint(x[i + 2]),
                                   __float_as_uint(x[i + 3])});
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

  /// What the tiles of keys of a part share. This thread's rows are ds_rows apart.
  struct Part {
    Sharers batch, heads;
    int row, position, end_key;
    char* line;        ///< of `row`
    long long stride;  ///< bytes from a row to the next
  };
  __device__ Part part_at(int first, int set) const {
    const SumOfDs& its = sum();
    const Strided& to = its.to.to;
    const int of_batch = set / its.heads.count, of_heads = set - of_batch * its.heads.count,
              row = first + static_cast<int>(threadIdx.x) / ds_lanes<Tile>, position = row + args.q_offset;
    return {{its.batch, of_batch, args.batch},
            {its.heads, of_heads, args.q_heads},
            row,
            position,
            this->end_key() < args.kv_len ? this->end_key() : its.columns,
            static_cast<char*>(to.data) + size() * (of_batch * to.batch + of_heads * to.head + position * to.position),
            size() * ds_rows<Tile> * to.position};
  }
  __device__ bool exists(const Part& part, int r) const {
    const int position = part.position + r * ds_rows<Tile>;
    return position >= 0 && position < sum().rows;
  }
  static __device__ int key_of(int tile) {
    return tile * Tile::n + each * (static_cast<int>(threadIdx.x) % ds_lanes<Tile>);
  }

  /// Stores elements of ds_rows * `rows` queries from `first` on, which lie in one tile, by tiles of keys [tile, end);
  /// `set`: of batch entries and heads. Elements without pairs are 0, as those beyond the last key or query.
  template <int rows>
  __device__ void store_part(int first, int tile, int end, int set) const {
    const Part part = part_at(first, set);
    const long long element = sum().to.to.element;
    const bool in_eights = element == 1 && ((reinterpret_cast<unsigned long long>(part.line) | part.stride) & 15) == 0;
#pragma unroll 1
    for (; tile < end; ++tile) {
      const int key = key_of(tile), count = min(part.end_key - key, each);
      float sums[rows][each] = {};
      if (add_terms<rows>(sums, part, first, tile, key) && sum().is_ds) continue;
      char* at = part.line + size() * (key * element);
#pragma unroll
      for (int r = 0; r < rows; ++r, at += part.stride) {
        if (!exists(part, r)) continue;
        if (in_eights && count == each)
          store_eight(at, sums[r]);
        else
          store_each(at, count,
                     {sums[r][0], sums[r][1], sums[r][2], sums[r][3], sums[r][4], sums[r][5], sums[r][6], sums[r][7]});
      }
    }
  }
  /// The same, from operands.
  template <int rows>
  __device__ void store_part_again(int first, int tile, int end, int set) const {
#pragma unroll 1
    for (int nth = 0; nth < (end - tile) * rows * each; ++nth) {
      const Part part = part_at(first, set);
      const int r = nth / each % rows, key = key_of(tile + nth / (rows * each)) + nth % each;
      if (exists(part, r) && key < part.end_key)
        store(part.line + r * part.stride + size() * (key * sum().to.to.element),
              sum_again(part.batch, part.heads, part.row + r * ds_rows<Tile>, key));
    }
  }
  /// Adds the dS of all that share these elements. True if there is any; if dS is the result, nothing is added.
  template <int rows>
  __device__ bool add_terms(float (&sums)[rows][each], const Part& part, int first, int tile, int key) const {
    const auto& [batch, heads, row, position, end_key, to, stride] = part;
    constexpr int at_once = ds_loads / rows;  // terms
    const int terms = batch.count() * heads.count();
    int b = batch.begin, h = heads.begin;
    bool found = false;
#pragma unroll 1
    for (int term = 0; term < terms; term += at_once) {
      Entry entries[at_once];
      Where at[at_once];
      bool is_stored[at_once], any = false;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const Entry& entry = entries[i] = entry_of<Tile>(args, b);
        at[i] = entry.at(b, h);
        is_stored[i] = term + i < terms && this->has(entry, first, tile * Tile::n) &&
                       this->is_stored(entry, at[i], first / Tile::m, tile);
        any = any || is_stored[i];
        // After the last term, it is taken again.
        if (term + i + 1 < terms && ++h == heads.end) h = heads.begin, ++b;
      }
      if (!any) continue;
      if (sum().is_ds) return true;
      found = true;
      uint4 x[at_once][rows];
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const Element* line = this->at(at[i].b, at[i].h, row, key);
        const int rows_left = is_stored[i] && key < entries[i].keys.length ? entries[i].queries.length - row : 0;
#pragma unroll
        for (int r = 0; r < rows; ++r, line += ds_rows<Tile> * user.stored_ds.ds.position)
          x[i][r] = global_get_if(r * ds_rows<Tile> < rows_left, line);
      }
#pragma unroll
      for (int i = 0; i < at_once; ++i)
#pragma unroll
        for (int r = 0; r < rows; ++r) add(sums[r], x[i][r], entries[i], at[i], row + r * ds_rows<Tile>, key);
    }
    return found;
  }
};

/// The gradients of all dense biases.
template <class Tile, class User>
struct SumsOfDs : DsOfKeys<Tile, User> {
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;
  static constexpr int count = User::gradient.by_ds;

  /// The number of parts into which `across` tiles of keys of a set are divided.
  __device__ int parts_of_set(const SumOfDs& its, int across) const {
    const int terms = min(its.batch.size, args.batch) * min(its.heads.size, args.q_heads);
    return terms < ds_many_terms ? 1 : across;
  }
  /// The number of parts of a sum, over all its sets of batch entries and heads; 0 if dS is its result.
  __device__ int parts_of(const SumOfDs& its, int across, bool again) const {
    if (its.is_ds && !again && !User::traits.skips) return 0;
    return its.batch.count * its.heads.count * parts_of_set(its, across);
  }
  __device__ int parts_of_all(int across, bool again) const {
    int out = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) out += parts_of(user.sums_of_ds[i], across, again);
    return out;
  }
  /// A block of queries, from `first` on, by `across` tiles of keys: [tile, end), fewer than `across` at the end.
  struct Place {
    int first, tile, end, across;
  };
  template <int rows>
  __device__ void store_part(Place place, int part, bool again) const {
    int nth = 0;
#pragma unroll
    for (int i = 0; i + 1 < count; ++i) {
      const int parts = parts_of(user.sums_of_ds[i], place.across, again);
      if (part < parts) break;
      part -= parts;
      ++nth;
    }
    const int of_set = parts_of_set(user.sums_of_ds[nth], place.across), set = part / of_set;
    if (of_set > 1) {
      place.tile += part - set * of_set;
      place.end = min(place.tile + 1, place.end);
    }
    const SumDs<Tile, User> sum{{args, user}, nth};
    if (again)
      sum.template store_part_again<rows>(place.first, place.tile, place.end, set);
    else
      sum.template store_part<rows>(place.first, place.tile, place.end, set);
  }

  /// Parts of the same place follow one another. Sums that read the same dS still read it from memory once each.
  struct Parts {
    int positions = 0, first_tile, tiles;
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
      if (parts_of(its, 1, again) == 0) continue;
      out.positions = max(out.positions, its.rows);
      columns = max(columns, its.columns);
    }
    // Columns beyond the last key belong to its tile's launch.
    if (this->end_key() >= args.kv_len) out.tiles = (columns + Tile::n - 1) / Tile::n - out.first_tile;
    return out;
  }
  template <int rows>
  __device__ void run(const Parts& all, int across, bool again) const {
    constexpr int queries = rows * ds_rows<Tile>;
    static_assert(Tile::m % queries == 0);
#pragma unroll 1
    for (int nth = static_cast<int>(blockIdx.x);; nth += static_cast<int>(gridDim.x)) {
      // Not kept from part to part: there are no registers for what follows.
      int tiles = across;
      pin(tiles);
      const auto blocks = all.blocks(queries, args.q_offset);
      const int stride = static_cast<int>(gridDim.x), in_row = (all.tiles + tiles - 1) / tiles,
                parts = parts_of_all(tiles, again), place = nth / parts, block = place / in_row,
                tile = all.first_tile + (place - block * in_row) * tiles;
      if (block >= blocks.count) return;
      // Sums differ in their number of terms, so a block takes another sum in each round.
      const int turn = parts - (stride - 1) % parts, round = place * parts / stride;
      store_part<rows>({(block - blocks.before) * queries, tile, min(tile + tiles, all.first_tile + all.tiles), tiles},
                       (nth + round * turn) % parts, again);
    }
  }
  __device__ void run() const {
    const bool again = *args.non_finite != 0;
    const Parts all = parts(again);
    const int parts = parts_of_all(1, again);
    if (parts == 0) return;
    const long long many = static_cast<long long>(all.blocks(ds_most_rows * ds_rows<Tile>, args.q_offset).count) *
                           all.tiles * parts;
    if (many < gridDim.x)
      run<1>(all, 1, again);
    else
      run<ds_most_rows>(all, many < ds_across * gridDim.x ? 1 : ds_across, again);
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

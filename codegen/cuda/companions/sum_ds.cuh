// codegen/cuda/companions/sum_ds.cuh — computes gradients from the dS that a backward has stored: those of dense
// biases, and sums along diagonals in the same call
//
// Each element of a dense bias's gradient is the sum of dS times a factor over the batch entries and heads that share
// it, in their order, in f32, and is rounded once. If dS already is the gradient, there is nothing to do. If the
// backward has found non-finite values, the kernel recomputes dS pair by pair: masked-out pairs then add 0, even if
// they hold NaN.
//
// Tile: that kernel's. Blocks of sum_ds_threads share the elements of this launch's keys, eight of a row a thread; then
// its distances q - kv, one a thread.
#pragma once

#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/ptx/memory.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// The dS of a launch's keys.
template <class Tile, class User>
struct DsOfKeys {
  using Element = typename Tile::Element;

  const BackwardArgs& args;
  const User& user;

  __device__ int first_key() const { return user.stored_ds.first_tile * Tile::n; }
  __device__ int end_key() const { return first_key() + user.stored_ds.tiles * Tile::n; }

  static __device__ bool has(const Entry& entry, int row, int key) {
    return row < entry.queries.length && key < entry.keys.length;
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

  /// dS of a pair, computed from its operands. Not inlined: sums then had 48 registers and spilled, or had 72.
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

/// The gradient of the nth dense bias.
template <class Tile, class User, int nth_sum>
struct SumDs : DsOfKeys<Tile, User> {
  using Element = typename Tile::Element;
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;
  static constexpr int each = 8;  ///< elements of a thread

  __device__ const SumOfDs& sum() const { return user.sums_of_ds[nth_sum]; }

  /// The eights of a row in this launch. Columns beyond the last key belong to its tile's launch.
  struct Columns {
    int begin, end;
    __device__ int eights() const { return (end - begin + each - 1) / each; }
  };
  __device__ Columns columns() const {
    return {this->first_key(), this->end_key() < args.kv_len ? this->end_key() : sum().columns};
  }

  /// What dS of a query's keys is multiplied by.
  __device__ float factor(const Entry& entry, const typename User::Head& head, const Where& at, int row,
                          int key) const {
    const Int q = entry.query(row), origin = entry.query(0), kv = key;
    return user.ds_factor(nth_sum, head, user.row(head, at, q), user.col(head, at, origin, kv), at, origin, q, kv);
  }

  /// Adds the terms of eight keys in a batch entry and head.
  __device__ void add(float (&sums)[each], int b, int h, int row, int key) const {
    const Entry entry = entry_of<Tile>(args, b);
    if (is_packed<Tile> && !this->has(entry, row, key)) return;
    const Where at = entry.at(b, h);
    const auto head = user.head(at);
    const uint4 x = __ldg(reinterpret_cast<const uint4*>(this->at(b, h, row, key)));
    const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < each; ++i) {
      const float ds = i % 2 ? high_of<Element>(words[i / 2]) : low_of<Element>(words[i / 2]);
      // A pair that adds nothing does so even if its factor is infinite or NaN.
      sums[i] += ds == 0.0f ? 0.0f : ds * factor(entry, head, at, row, min(key + i, at.kv_len - 1));
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
  struct Range {
    int begin, end;
    __device__ Range(const SumOfDs::Groups& groups, int nth, int all)
        : begin(min(max(nth * groups.size - groups.before, 0), all)),
          end(min(max((nth + 1) * groups.size - groups.before, 0), all)) {}
  };
  /// Eight elements of a row: the batch entries and heads that share them, the row, and the first key.
  struct Place {
    Range b, h;
    int row, key, count;
    bool any;  ///< false: a gradient that is larger than the call has elements of no pair, which are 0
    long long offset;
  };
  __device__ Place place(long long nth, const Columns& here) const {
    const SumOfDs& its = sum();
    const int eights = here.eights(), key = here.begin + each * static_cast<int>(nth % eights);
    nth /= eights;
    const int position = static_cast<int>(nth % its.rows);
    nth /= its.rows;
    const int h = static_cast<int>(nth % its.heads.count), b = static_cast<int>(nth / its.heads.count),
              row = position - args.q_offset;
    const Strided& to = its.to.to;
    return {.b = {its.batch, b, args.batch},
            .h = {its.heads, h, args.q_heads},
            .row = row,
            .key = key,
            .count = min(here.end - key, each),
            .any = row >= 0 && row < args.q_len && key < args.kv_len,
            .offset = b * to.batch + h * to.head + position * to.position + key * to.element};
  }

  /// The element i of eight, from operands.
  __device__ float sum_again(const Place& of, int i) const {
    float sum = 0;
    if (!of.any) return sum;
#pragma unroll 1
    for (int b = of.b.begin; b < of.b.end; ++b)
#pragma unroll 1
      for (int h = of.h.begin; h < of.h.end; ++h) {
        const Entry entry = entry_of<Tile>(args, b);
        if (!this->has(entry, of.row, of.key + i)) continue;
        const Where at = entry.at(b, h);
        const auto head = user.head(at);
        const float ds = this->recomputed(entry, head, at, of.row, of.key + i);
        sum += ds == 0.0f ? 0.0f : ds * factor(entry, head, at, of.row, of.key + i);
      }
    return sum;
  }

  __device__ void run() const {
    const SumOfDs& its = sum();
    const bool again = *args.non_finite != 0;
    if (its.is_ds && !again) return;
    const Columns here = columns();
    const long long count = static_cast<long long>(its.batch.count) * its.heads.count * its.rows * here.eights();
    for (long long nth = static_cast<long long>(blockIdx.x) * sum_ds_threads + threadIdx.x; nth < count;
         nth += static_cast<long long>(gridDim.x) * sum_ds_threads) {
      const Place of = place(nth, here);
      if (again) {
#pragma unroll 1
        for (int i = 0; i < of.count; ++i) store(of.offset + i * its.to.to.element, sum_again(of, i));
        continue;
      }
      float sums[each] = {};
      // One loop, so that four loads are under way wherever terms are several.
      const int heads = of.h.end - of.h.begin, terms = of.any ? (of.b.end - of.b.begin) * heads : 0;
      int b = of.b.begin, h = of.h.begin;
#pragma unroll 4
      for (int term = 0; term < terms; ++term) {
        add(sums, b, h, of.row, of.key);
        if (++h == of.h.end) h = of.h.begin, ++b;
      }
      // Beyond the last key, dS is 0.
      store(of.offset, of.count, sums);
    }
  }
};

/// Sums along diagonals: what the pairs of a head and a distance q - kv add to tensors.
template <class Tile, class User>
struct SumDistances : DsOfKeys<Tile, User> {
  using DsOfKeys<Tile, User>::args;
  using DsOfKeys<Tile, User>::user;

  /// dS of this pair, or, where `again`, what it is from operands.
  __device__ float of_pair(const Entry& entry, const typename User::Head& head, const Where& at, int row, int key,
                           bool again) const {
    if (again) return this->recomputed(entry, head, at, row, key);
    return low_of<typename Tile::Element>(
        __ldg(reinterpret_cast<const unsigned short*>(this->at(at.b, at.h, row, key))));
  }

  /// A block has sum_ds_threads distances of a head.
  __device__ void add(const Entry& entry, const Where& at, int nth, bool again) const {
    constexpr int at_once = 8;
    const int rows = entry.queries.length, begin = this->first_key(), end = min(this->end_key(), entry.keys.length);
    if (rows == 0 || end <= begin) return;
    const auto head = user.head(at);
    const int least = 1 - end, thread = static_cast<int>(threadIdx.x), distance = least + nth * sum_ds_threads + thread,
              of_warp = distance - thread % 32, most = rows - 1 - begin;
    // Lanes read neighbouring keys of one row after another.
    const int first = max(0, of_warp + begin), last = min(rows, of_warp + 31 + end);
    double sum = 0;
#pragma unroll 1
    for (int from = first; from < last; from += at_once) {
      float part = 0;
#pragma unroll
      for (int i = 0; i < at_once; ++i) {
        const int row = from + i, key = row - distance;
        if (row < last && key >= begin && key < end) part += of_pair(entry, head, at, row, key, again);
      }
      sum += static_cast<double>(part);
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

template <class Tile, class User, int nth_sum = 0>
__device__ inline void sum_each(const BackwardArgs& args, const User& user) {
  SumDs<Tile, User, nth_sum>{args, user}.run();
  if constexpr (nth_sum + 1 < User::gradient.by_ds) sum_each<Tile, User, nth_sum + 1>(args, user);
}

template <class Tile, class User>
__global__ void __launch_bounds__(sum_ds_threads)
    sum_ds(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  static_assert(StoresDs<User>);
  let_next_start();
  wait_for_kernel_before();
  sum_each<Tile>(args, user);
  if constexpr (User::gradient.by_distance) SumDistances<Tile, User>{args, user}.run();
}

}  // namespace attune

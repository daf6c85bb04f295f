// codegen/cuda/companions/sum_sinks.cuh — gradients of captured tensors that follow from each row's lse and delta: what
// a sink reads, and what the scores of a row have in common
//
// A sink has no value, so its gradient is its probability times -delta. A term that is the same for a row's scores gets
// the sum of the row's dS. Probabilities add up to 1 less the sink's, so this sum is that of p dp, which is delta and
// grad_lse, less delta times 1 less the sink's probability: grad_lse, and delta times the sink's probability.
//
// Runs after kernels that do not add these up themselves. Tile: that kernel's. Blocks: (sum_sinks_rows rows, head,
// batch entry), a row a thread in turn.
#pragma once

#include "codegen/cuda/parts/backward_sm80.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// A Mod with terms of rows' sums of dS.
template <class M>
concept EndsRows = Differentiable<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, float x, Int i) {
  m.by_end(true, x, head, row, at, i);  // false: adds nothing; the sum, …, q
};

/// A Mod with terms of rows' sums of p dP.
template <class M>
concept SharesDelta = Differentiable<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, float x, Int i) {
  bool(m.is_told(head, row, at, i));      // q: delta is precise
  m.by_delta(true, x, head, row, at, i);  // false: adds nothing; the sum of dP times prob(), …, q
};

/// Adds the sums of dS of the rows from `first` to `end`. All lanes of a warp add at once.
template <class Tile, class User>
__device__ inline void add_ends(const BackwardArgs& args, const User& user, const Entry& entry, const Where& at,
                                int first, int end) {
  static_assert(EndsRows<User>);
  const auto head = user.head(at);
  const float sink = User::traits.has_sink ? user.sink(head, at) : -infinity;
  for (; first < end; first += sum_sinks_threads) {
    const int row = first + static_cast<int>(threadIdx.x), nearest = min(row, end - 1),
              position = entry.queries.start + nearest;
    const float lse = *row_of(args.lse, at.b, at.h, position), delta = *row_of(args.delta, at.b, at.h, position),
                of_lse = args.grad_lse.data ? *row_of(args.grad_lse, at.b, at.h, position) : 0.0f,
                share = sink == -infinity ? 0.0f : power_of_two((sink - lse) * (1 / ln2));
    // Where lse or delta is NaN, so is each dS of the row. A row without pairs has no dS.
    const float sum = lse == lse ? of_lse + share * delta : lse;
    const Int q = entry.query(nearest);
    user.by_end(row < end && lse != -infinity, sum, head, user.row(head, at, q), at, q);
  }
}

/// Adds what rows from `first` to `end` say of gates. All lanes of a warp add at once.
template <class Tile, class User>
__device__ inline void add_gates(const BackwardArgs& args, const User& user, const Entry& entry, const Where& at,
                                 int first, int end) {
  static_assert(SharesDelta<User>);
  const auto head = user.head(at);
  for (; first < end; first += sum_sinks_threads) {
    const int row = first + static_cast<int>(threadIdx.x), nearest = min(row, end - 1),
              position = entry.queries.start + nearest;
    const Int q = entry.query(nearest);
    const auto of_row = user.row(head, at, q);
    const float lse = *row_of(args.lse, at.b, at.h, position), delta = *row_of(args.delta, at.b, at.h, position),
                of_lse = args.grad_lse.data ? *row_of(args.grad_lse, at.b, at.h, position) : 0.0f;
    const bool there = row < end && lse != -infinity && user.is_told(head, of_row, at, q);
    user.by_delta(there, delta + of_lse, head, of_row, at, q);
  }
}

template <class Tile, class User>
__global__ void __launch_bounds__(sum_sinks_threads)
    sum_sinks(const __grid_constant__ BackwardArgs args, const __grid_constant__ User user) {
  wait_for_kernel_before();
  const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
  const Entry entry = entry_of<Tile>(args, b);
  const Range queries = entry.queries;
  const Where at = entry.at(b, h);
  const int first = static_cast<int>(blockIdx.x) * sum_sinks_rows, end = min(first + sum_sinks_rows, queries.length);
  if (first >= end) return;
  if constexpr (User::gradient.by_gate > 0) add_gates<Tile>(args, user, entry, at, first, end);
  if constexpr (User::gradient.by_end > 0) add_ends<Tile>(args, user, entry, at, first, end);
  if constexpr (User::gradient.by_sink) {
    const auto head = user.head(at);
    const float sink = user.sink(head, at);
    if (sink == -infinity) return;
    float sum = 0;
    for (int q = first + static_cast<int>(threadIdx.x); q < end; q += sum_sinks_threads) {
      const int position = queries.start + q;
      sum -= power_of_two((sink - *row_of(args.lse, b, h, position)) * (1 / ln2)) * *row_of(args.delta, b, h, position);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) user.by_sink(sum, head, at);
  }
}

}  // namespace attune

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

/// A Mod with terms that follow from sums over a row's pairs.
template <class M>
concept EndsRows = Differentiable<M> &&
    requires(const M m, Where at, typename M::Head head, typename M::Row row, float x, Int i) {
  m.end_row(true, x, x, x, head, row, at, i);  // false: adds nothing; the sum of dS, delta, grad_lse, …, q
};

/// Adds what follows from sums over the rows from `first` to `end`. All lanes of a warp add at once.
template <class Tile, EndsRows User>
__device__ inline void end_rows(const BackwardArgs& args, const User& user, const Entry& entry, const Where& at,
                                int first, int end) {
  const auto head = user.head(at);
  const float sink = User::traits.has_sink ? user.sink(head, at) : -infinity;
  for (; first < end; first += sum_sinks_threads) {
    const int row = first + static_cast<int>(threadIdx.x), nearest = min(row, end - 1),
              position = entry.queries.start + nearest;
    const auto of_row = user.row(head, at, entry.query(nearest));
    const float lse = *row_of(args.lse, at.b, at.h, position), delta = *row_of(args.delta, at.b, at.h, position),
                of_lse = args.grad_lse.data ? *row_of(args.grad_lse, at.b, at.h, position) : 0.0f,
                share = sink == -infinity ? 0.0f : power_of_two((sink - lse) * (1 / ln2));
    // Where lse or delta is NaN, so is each dS of the row. A row without pairs has no dS.
    const float ds = lse == lse ? of_lse + share * delta : lse;
    user.end_row(row < end && lse != -infinity, ds, delta, of_lse, head, of_row, at, entry.query(nearest));
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
  if constexpr (EndsRows<User>) end_rows<Tile>(args, user, entry, at, first, end);
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

// codegen/cuda/companions/combine_parts.cuh — split-KV combine of Hopper's forward: what its blocks have left of each
// row over parts of its keys becomes the row's results
//
// One warp per row of a head, rows_of_copy rows per block. Parts are added up in order. This kernel is the same for
// every mod: the blocks have also left what it needs to know of theirs.
#pragma once

#include "codegen/cuda/companions/elements.cuh"
#include "codegen/cuda/parts/row.cuh"
#include "codegen/cuda/ptx/threads.cuh"

namespace attune {

/// What end_of_row() asks of a mod.
struct LeftOfMod {
  struct Head {};
  struct Row {};
  static constexpr Traits traits{.has_sink = true};
  float of_rest, of_sink;  ///< of_sink: -inf if the mod has none
  __device__ float rest(Head, Row, Where, Int, Int) const { return of_rest; }
  __device__ float sink(Head, Where) const { return of_sink; }
};

/// True if a position of packed queries belongs to a sequence, of which q_len positions count.
__device__ inline bool is_of_sequence(const Entries& of, int position) {
  int b = 0;
  for (int end = of.batch; end - b > 1;) {
    const int middle = (b + end) / 2;
    (of.q_starts[middle] <= position ? b : end) = middle;
  }
  const int nth = position - of.q_starts[b];
  return nth >= 0 && nth < min(of.q_starts[b + 1] - of.q_starts[b], of.q_len);
}

__global__ void __launch_bounds__(32 * rows_of_copy) combine_parts(const __grid_constant__ InParts<ForwardArgs> all) {
  const ForwardArgs& args = all;
  const KeyParts& parts = all.parts;
  const long long row = row_of_warp();
  wait_for_kernel_before();
  if (row >= parts.rows) return;
  const int lane = lane_of_warp(), position = static_cast<int>(row % parts.positions),
            head = static_cast<int>(row / parts.positions % args.q_heads),
            b = static_cast<int>(row / parts.positions / args.q_heads);
  if (args.q_starts && !is_of_sequence(args, position)) return;
  // Each lane has the sums of a part.
  static_assert(most_key_parts == 32);
  RowPartial mine{0, -infinity};
  if (lane < parts.count) mine = reinterpret_cast<const RowPartial*>(parts.sums)[lane * parts.rows + row];
  float over = mine.over;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) over = fmaxf(over, __shfl_xor_sync(~0u, over, step));
  const float share = power_of_two(mine.over - (over == -infinity ? 0.0f : over));
  // A share of 0 removes even non-finite results; but a NaN sum stays, because such a row has no largest score.
  const float sum = warp_sum(share != 0.0f || mine.sum != mine.sum ? mine.sum * share : 0.0f);
  const float2 rests = reinterpret_cast<const float2*>(parts.rests)[row];
  const Ended ended = end_of_row(LeftOfMod{rests.x, rests.y}, {}, {}, {}, 0, 0, {sum, over});
  Merged with{1, 0, ended.lse};
  if (all.o_before.data) with = merged(ended.lse, lse_before(args, b, head, position));
  __syncwarp();  // lse_before may be where lse is written
  if (lane == 0) {
    put_of_row(args.lse, b, head, position, with.lse);
    put_of_row(args.max, b, head, position, ended.max);
  }
  const float by = ended.factor * with.own;
#pragma unroll 1
  for (int first = 0; first < args.dv; first += 128) {
    const int column = first + 4 * lane;
    const bool there = column < args.dv;
    float o[4] = {};
    // Several parts load at a time.
    constexpr int batch = 8;
#pragma unroll 1
    for (int nth = 0; nth < parts.count; nth += batch) {
      float4 some[batch];
      float shares[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        shares[i] = nth + i < parts.count ? __shfl_sync(~0u, share, nth + i) : 0.0f;
        some[i] = {};
        if (there && shares[i] != 0.0f)
          some[i] = *reinterpret_cast<const float4*>(parts.o + ((nth + i) * parts.rows + row) * args.dv + column);
      }
#pragma unroll
      for (int i = 0; i < batch; ++i)
        if (shares[i] != 0.0f) {
          o[0] += some[i].x * shares[i];
          o[1] += some[i].y * shares[i];
          o[2] += some[i].z * shares[i];
          o[3] += some[i].w * shares[i];
        }
    }
    if (!there) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      o[i] = by == 0.0f ? 0.0f : o[i] * by;
      if (with.before != 0.0f) o[i] += with.before * o_before(args, b, head, position, column + i);
    }
    unsigned short* const to = static_cast<unsigned short*>(args.o.data) + b * args.o.batch + head * args.o.head +
                               position * args.o.position + column;
    *reinterpret_cast<uint2*>(to) = parts.o_type == Stored::f16 ? uint2{pack<f16>(o[0], o[1]), pack<f16>(o[2], o[3])}
                                                                : uint2{pack<bf16>(o[0], o[1]), pack<bf16>(o[2], o[3])};
  }
}

}  // namespace attune

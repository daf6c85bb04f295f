// codegen/cuda/parts/before.cuh — merges a call's results with the results of another call over other keys
#pragma once

#include "codegen/cuda/contract/further.cuh"
#include "codegen/cuda/parts/softmax.cuh"

namespace attune {

/// A row's own result, and another call's result for the same query over other keys; as in runtime/engines/merge.h.
struct Merged {
  float own, before;  ///< shares of the two outputs
  float lse;          ///< of all keys
};
__device__ inline Merged merged(float own, float before) {
  const float top = before != before || before > own ? before : own;
  // Neither result has a key: both outputs are 0.
  if (top == -infinity) return {1, 0, top};
  const float a = power_of_two((own - top) * (1 / ln2)), b = power_of_two((before - top) * (1 / ln2)), sum = a + b;
  return {a / sum, b / sum, top + ln2 * log2f(sum)};
}

template <class Args>
__device__ inline float lse_before(const Args& args, int b, int h, int position) {
  const Rows& rows = further(args).lse_before;
  return rows.data[b * rows.batch + h * rows.head + position * rows.position];
}
template <class Args>
__device__ inline float o_before(const Args& args, int b, int h, int position, int column) {
  const Strided& o = further(args).o_before;
  const long long at = b * o.batch + h * o.head + position * o.position + column * o.element;
  if (further(args).o_before_type == Stored::f32) return static_cast<const float*>(o.data)[at];
  const unsigned half = static_cast<const unsigned short*>(o.data)[at];
  return further(args).o_before_type == Stored::f16 ? low_of<f16>(half) : low_of<bf16>(half);
}

}  // namespace attune

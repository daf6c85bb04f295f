// codegen/cuda/parts/parts.cuh — combines the parts of a row, each computed over some of its keys
#pragma once

#include "codegen/cuda/parts/softmax.cuh"

namespace attune {

/// Four columns of a row of results, over some of its keys.
struct PartOfRow {
  float o[4] = {};
  RowPartial part{0, -infinity};

  struct Other {
    float4 o{};
    RowPartial part{0, -infinity};
  };
  /// Adds a part over other keys. The order of calls decides the last bits.
  template <int Count>
  __device__ void add(const Other (&other)[Count]) {
    float over = part.over;
#pragma unroll
    for (int i = 0; i < Count; ++i) over = fmaxf(over, other[i].part.over);
    const float base = over == -infinity ? 0.0f : over;
    const auto join = [](float& x, float y, float by) { x = by == 0.0f ? x : x + y * by; };
    const float mine = power_of_two(part.over - base);
    // A share of 0 removes even non-finite results; but a NaN sum stays, because such a row has no largest score.
#pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = mine == 0.0f ? 0.0f : o[i] * mine;
    part = {mine == 0.0f && part.sum == part.sum ? 0.0f : part.sum * mine, over};
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const float theirs = power_of_two(other[i].part.over - base);
      join(o[0], other[i].o.x, theirs);
      join(o[1], other[i].o.y, theirs);
      join(o[2], other[i].o.z, theirs);
      join(o[3], other[i].o.w, theirs);
      if (theirs != 0.0f || other[i].part.sum != other[i].part.sum) part.sum += other[i].part.sum * theirs;
    }
  }
};

}  // namespace attune

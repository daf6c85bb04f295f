// codegen/cuda/backward_wide_sm90/queries_f32_layout.cuh — the shared memory of a block of queries_f32_sm90.cuh: that
// of queries_sm90.cuh with operands that are split into numbers of f16
#pragma once

#include "codegen/cuda/backward_wide_sm90/queries_layout.cuh"

namespace attune {

/// `d`, `dv`: columns of all parts of a row. 64 columns of results pass over queries.
constexpr QueriesLayout90 queries_layout_f32(int m, int n, int d, int dv, int stages, int v_stages) {
  return {
      .m = m, .n = n, .d = d, .dv = dv, .stages = stages, .v_stages = v_stages, .element = 2, .results = 4 * 64 * m};
}

}  // namespace attune

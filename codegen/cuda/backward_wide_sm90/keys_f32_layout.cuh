// codegen/cuda/backward_wide_sm90/keys_f32_layout.cuh — the shared memory of a block of keys_f32_sm90.cuh: that of
// keys_sm90.cuh with operands that are split into numbers of f16
#pragma once

#include "codegen/cuda/backward_wide_sm90/keys_layout.cuh"

namespace attune {

/// `d`, `dv`: columns of all parts of a row. Weights are f32, rows of queries have a factor of q and one of grad_o, and
/// 64 columns of results pass over keys, and over values.
constexpr KeysLayout90 keys_layout_f32(int m, int n, int d, int dv, int stages) {
  return {.m = m,
          .n = n,
          .d = d,
          .dv = dv,
          .stages = stages,
          .element = 2,
          .weight = 4,
          .held_chunks = 0,
          .row_factors = 2,
          .results = 4 * 64 * n};
}

}  // namespace attune

// runtime/layout.h — where one (batch entry, head) lies in a tensor of a call, dense or packed
#pragma once

#include "compiler/problem.h"

namespace attune::runtime {

/// Offsets in elements: element (i, j) is at origin + i * row + j * column.
struct MatrixLayout {
  std::int64_t origin = 0, row = 0, column = 0;
};

/// q, k, v, o and their gradients: [B, H, S, D], packed [T, H, D].
inline MatrixLayout matrix(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                           std::int64_t start) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? MatrixLayout{start * s[0] + h * s[1], s[0], s[2]}
                                            : MatrixLayout{b * s[0] + h * s[1], s[2], s[3]};
}
/// lse and what is shaped like it: [B, Hq, Sq], packed [Hq, T]. One column.
inline MatrixLayout column(const Tensor& t, compiler::Layout layout, std::int64_t b, std::int64_t h,
                           std::int64_t start) {
  const auto& s = t.strides;
  return layout == compiler::Layout::packed ? MatrixLayout{h * s[0] + start * s[1], s[1], 0}
                                            : MatrixLayout{b * s[0] + h * s[1], s[2], 0};
}

/// One batch entry or packed sequence. kv_b: its entry in k and v, which may hold one for all.
struct Sequence {
  std::int64_t b, kv_b, q_start, q_len, kv_start, kv_len;
};

inline Sequence sequence(const compiler::Problem& p, std::int64_t b) {
  if (!p.q.packed()) return {b, p.kv_shared ? 0 : b, 0, p.q.length, 0, p.kv.length};
  const auto i = static_cast<std::size_t>(b);
  return {b, b, p.q.starts[i], p.q.starts[i + 1] - p.q.starts[i], p.kv.starts[i], p.kv.starts[i + 1] - p.kv.starts[i]};
}

}  // namespace attune::runtime

// codegen/facts/reads.h — which reads of captured tensors a GPU kernel may leave unclamped
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "compiler/lower.h"

namespace attune::codegen {

/// The per-pair reads of these expressions, if all their indices are sums of q, kv and per-head values: indices in
/// range at a tile's corners are then in range inside. Otherwise none.
std::vector<ir::Expr> linear_reads(std::span<const ir::Expr> roots);

/// The reads of a score that a kernel can copy to shared memory tile by tile: see compiler/distance.h. In a backward
/// they are of LoweredMod::dense, in its order; a forward copies none of f32.
std::vector<ir::Expr> copied_reads(const ir::Expr& score, const compiler::LoweredMod& lowered, bool backward = false);

/// The largest part of a score that reads captured tensors and has the same value for all pairs of one distance q - kv.
/// In a score with an only_tanh(), one read is left to each pair. Null: none.
ir::Expr distant_part(const ir::Expr& score);

/// The reads of an expression that differ between the pairs of a head.
int count_reads(const ir::Expr& e);

/// The tanh, outside of sums, through which alone the score depends on s; null if there is none.
ir::Expr only_tanh(const ir::Expr& score);

/// True if the indices of one of copied_reads() but the last are linear in q.
bool has_linear_line(const ir::Expr& read);

/// True if any of these reads a captured tensor.
bool read_captures(std::span<const ir::Expr> roots);
/// True if one of these expressions has a field of a column.
bool ask_columns(std::span<const ir::Expr> roots);

/// True if the kernels of a backward may not copy copied_reads() of this tensor: its rows cannot be copied 16 bytes at
/// a time, or have fewer columns than there are keys.
bool has_unaligned_rows(const Tensor& captured, std::int64_t keys);

/// True if offsets into any of these need more than 32 bits.
inline bool reach_far(std::span<const Tensor> captures) {
  return std::any_of(captures.begin(), captures.end(), [](const Tensor& t) {
    double reach = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
      reach += static_cast<double>(std::max<std::int64_t>(t.shape[d] - 1, 0)) *
               std::abs(static_cast<double>(t.strides[d]));
    return reach > static_cast<double>(std::numeric_limits<std::int32_t>::max());
  });
}

}  // namespace attune::codegen

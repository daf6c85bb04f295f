// compiler/problem.h — the sizes of one call, worked out from its tensors once these agree
#pragma once

#include <attune/attention.h>

#include "compiler/trace.h"

namespace attune::compiler {

struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1;
  std::int64_t q_len = 0, kv_len = 0;  ///< packed: of the longest sequence
  std::int64_t d = 0, dv = 0;
  bool packed = false;
  bool kv_shared = false;                             ///< k and v have one batch entry for all
  std::int64_t q_total = 0, kv_total = 0;             ///< packed: positions of all sequences
  std::vector<std::int64_t> q_starts{}, kv_starts{};  ///< packed: batch + 1 of each; none where a device has them
  double scale = 1;
  std::int32_t q_offset = 0;
  bool operator==(const Problem&) const = default;
  bool starts_on_device() const { return packed && q_starts.empty(); }
};

/// Shapes, types, devices, lengths, captures and gradients of a call; every refusal is an Error. Reads the data of
/// cu_seqlens and of no other tensor.
Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale);
Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale);

}  // namespace attune::compiler

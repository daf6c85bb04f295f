// compiler/problem.h — the sizes of one call, derived from its tensors after checking that they agree
#pragma once

#include <attune/attention.h>

#include "compiler/trace.h"

namespace attune::compiler {

struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1;
  std::int64_t q_len = 0, kv_len = 0;  ///< packed: the longest sequence's
  std::int64_t d = 0, dv = 0;
  bool packed = false;
  bool kv_shared = false;                             ///< all batch entries share one k and v
  std::int64_t q_total = 0, kv_total = 0;             ///< packed: total positions of all sequences
  std::vector<std::int64_t> q_starts{}, kv_starts{};  ///< packed: batch + 1 each; empty if they are on a device
  double scale = 1;
  std::int32_t q_offset = 0;
  bool operator==(const Problem&) const = default;
  bool starts_on_device() const { return packed && q_starts.empty(); }
};

/// Checks shapes, types, devices, lengths, captures and gradients of a call; throws an Error. Reads the data of
/// cu_seqlens and of no other tensor.
Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale);
Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale);

}  // namespace attune::compiler

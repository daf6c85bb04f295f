// compiler/problem.h — the sizes of one call, derived from its tensors after checking that they agree
#pragma once

#include <attune/attention.h>

#include "compiler/trace.h"

namespace attune::compiler {

/// How positions lie in a tensor: dense [B, H, S, D], packed [T, H, D] with sequences one after another.
enum class Layout : std::uint8_t { dense, packed };

/// The positions of q and what is shaped like it, or those of k and v.
struct Positions {
  Layout layout = Layout::dense;
  std::int64_t length = 0;             ///< packed: of the longest sequence
  std::int64_t total = 0;              ///< packed: positions of all sequences
  std::vector<std::int64_t> starts{};  ///< packed: batch + 1 of them; none where a device has them
  bool operator==(const Positions&) const = default;
  bool packed() const { return layout == Layout::packed; }
  bool starts_on_device() const { return packed() && starts.empty(); }
};

struct Problem {
  std::int64_t batch = 0, q_heads = 0, kv_heads = 0, group = 1;
  Positions q, kv;
  std::int64_t d = 0, dv = 0;
  bool kv_shared = false;  ///< all batch entries share one k and v
  double scale = 1;
  std::int32_t q_offset = 0;
  bool operator==(const Problem&) const = default;
};

/// Checks shapes, types, devices, lengths, captures and gradients of a call; throws an Error. Reads the data of
/// cu_seqlens and of no other tensor.
Problem check(const BoundMod& bound, const Forward& call, std::optional<double> scale);
Problem check(const BoundMod& bound, const Backward& call, std::optional<double> scale);

}  // namespace attune::compiler

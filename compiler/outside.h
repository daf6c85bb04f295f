// compiler/outside.h — proves and counts reads outside of captured tensors at pairs that no mask removes
#pragma once

#include <optional>

#include "compiler/mod.h"

namespace attune::compiler {

/// The values of `read`'s index at `dimension`, over the values within `bounds` of the one coordinate that the index is
/// a function of. Returned only if this is proven: at one of them the index is outside 0 .. extent - 1 and the read
/// counts, that is, `mask` (null: none) does not remove all such pairs, and no `where`, && or || of `root` drops the
/// value that was read. None otherwise, and for indices that depend on data, on parameters, or on two coordinates.
std::optional<ir::Interval> reads_outside(const ir::Expr& root, const ir::Expr& mask, const ir::Expr& read,
                                          std::size_t dimension, std::int64_t extent, const ir::Bounds& bounds);

/// Counts how often one index of one read is outside of its tensor at a pair.
struct OutsideIndex {
  enum class At : std::uint8_t { pair, kept_pair, head };  ///< where to evaluate `count`; of a mask: at every pair
  At at;
  ir::Expr read;
  std::size_t dimension;
  ir::Expr count;  ///< Int: above 1 only within a sum; a read that a where, an && or an || drops does not count
};

/// One OutsideIndex for each index of these reads of the Mod.
std::vector<OutsideIndex> outside_indices(const Mod& mod, std::span<const ir::Expr> reads,
                                          std::span<const Tensor> captures);

}  // namespace attune::compiler

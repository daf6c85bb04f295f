// compiler/check.h — Errors for expressions, once per Mod for the inputs they read, once per shape for their indices;
// proofs of reads outside
#pragma once

#include <optional>

#include "compiler/mod.h"
#include "compiler/problem.h"

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

/// Checks without tensors: each expression reads only inputs that exist where it is evaluated.
void check(const Mod& mod);

/// Checks capture indices against extents: an Error if an index is outside at every coordinate, or if it is a function
/// of one coordinate and is outside at a value of that coordinate where nothing removes the pair. Returns the reads
/// that could not be proven inside (an engine clamps those).
std::vector<ir::Expr> check_reads(const Mod& mod, std::span<const Tensor> captures, const Problem& problem);

}  // namespace attune::compiler

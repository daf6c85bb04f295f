// compiler/outside.h — reads outside of captured tensors, at pairs that nothing removes: proven ones, and how to count
#pragma once

#include <optional>

#include "compiler/mod.h"

namespace attune::compiler {

/// The values of `read`'s index at `dimension` over those of the coordinate that it is a function of, if at one of
/// them, within `bounds`, the index is outside 0 .. extent - 1 and the read counts: neither does `mask` (null: none)
/// remove all such pairs, nor does a `where`, an && or an || of `root` drop what was read. None unless that is proven,
/// and for indices that depend on data, on parameters, or on two coordinates.
std::optional<ir::Interval> reads_outside(const ir::Expr& root, const ir::Expr& mask, const ir::Expr& read,
                                          std::size_t dimension, std::int64_t extent, const ir::Bounds& bounds);

/// How often one index of one read is outside of its tensor at a pair.
struct OutsideIndex {
  enum class At : std::uint8_t { pair, kept_pair, head };  ///< where to evaluate it: those of a mask at every pair
  At at;
  ir::Expr read;
  std::size_t dimension;
  ir::Expr count;  ///< Int: above 1 only within a sum; what a where, an && or an || drops does not count
};

/// Of these reads of the Mod, each index.
std::vector<OutsideIndex> outside_indices(const Mod& mod, std::span<const ir::Expr> reads,
                                          std::span<const Tensor> captures);

}  // namespace attune::compiler

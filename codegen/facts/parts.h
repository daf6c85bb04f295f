// codegen/facts/parts.h — a Mod's expressions as CPU kernels take them: split by level, with what the forward must know
// of them
#pragma once

#include <optional>

#include "compiler/mod.h"

namespace attune::codegen {

/// The forward's expressions. `levels.element` holds core, mask, prob and row, in this order.
struct ForwardParts {
  compiler::Levels levels;
  bool masked = false;        ///< the mask is more than `true`
  bool has_prob = false;      ///< a prob mod is more than p
  bool prob_linear = true;    ///< prob(c p) == c prob(p): it can act before the normalisation
  bool has_row_term = false;  ///< see compiler::Fold; then the last field of a row

  const ir::Expr& core() const { return levels.element[0]; }
  const ir::Expr& mask() const { return levels.element[1]; }
  const ir::Expr& prob() const { return levels.element[2]; }
  const ir::Expr& row_term() const { return levels.element[3]; }
  std::size_t head_fields() const { return levels.head.size(); }
  std::size_t row_fields() const { return levels.row.size() + (has_row_term ? 1 : 0); }
  std::size_t col_fields() const { return levels.col.size(); }
};

ForwardParts forward_parts(const compiler::Mod& mod);

/// A compiler::Scatter as kernels take it.
struct Scattered {
  /// What its index varies with: nothing within a tile; only the row; the column (the last index follows it by steps of
  /// one, the others do not change); or anything.
  enum class Reach : std::uint8_t { Head, Row, Run, Any };

  std::uint32_t capture;
  bool by_prob;  ///< adds to the gradient of prob, else to that of the score
  std::vector<compiler::Scatter::Loop> loops;
  std::size_t rank, first;  ///< levels.element holds its indices from `first` on, and then its value
  Reach reach;
  int step;  ///< for Run, 1 or -1: the change of the last index from column to column
  /// By index: its coordinate, if the index is a coordinate.
  std::vector<std::optional<ir::Input>> plain;
};

/// The backward's expressions. `levels.element` holds the forward's, dscore, dprob, and those of `scattered`.
struct BackwardParts : ForwardParts {
  std::vector<Scattered> scattered;
  double delta_degree = 1;  ///< delta_degree() of the prob mod

  const ir::Expr& score_slope() const { return levels.element[4]; }
  const ir::Expr& prob_slope() const { return levels.element[5]; }
};

/// Captured tensors whose gradients are asked for, by slot.
using Wanted = std::vector<bool>;
BackwardParts backward_parts(const compiler::Mod& mod, const Wanted& wanted);

/// The k > 0 with which prob(c p) is c^k prob(p) for every c > 0, as 2 of `p * p * g[h]`, so that prob() can act before
/// the normalisation; prob(0) is then 0. 0: there is none, or it is too large.
double degree_in_p(const ir::Expr& prob);
/// True if `e` is p times something that does not depend on p.
inline bool linear_in_p(const ir::Expr& e) { return degree_in_p(e) == 1; }
/// The k > 0 with which p prob'(p) is k prob(p), as 1 of thresholds. The sum of p dp over a row, which the softmax's
/// gradient subtracts, is then k dO . O, and prob(0) is 0. 0: there is none that is precise enough.
double delta_degree(const ir::Expr& prob);
/// True if prob(0) is 0 for any values of the captured tensors: a masked-out pair may then count as one whose p is 0.
bool keeps_zero(const ir::Expr& prob);

}  // namespace attune::codegen

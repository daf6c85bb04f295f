// codegen/parts.h — a Mod's expressions as CPU kernels take them: split by level, with what the forward must know of
// them
#pragma once

#include "compiler/mod.h"

namespace attune::codegen {

/// The forward's expressions. `levels.left` holds core, mask, prob and row, in this order.
struct ForwardParts {
  compiler::Levels levels;
  bool masked = false;        ///< the mask is more than `true`
  bool has_prob = false;      ///< a prob mod is more than p
  bool prob_linear = true;    ///< prob(c p) == c prob(p): it can act before the normalisation
  bool has_row_term = false;  ///< see compiler::Fold; then the last field of a row

  const ir::Expr& core() const { return levels.left[0]; }
  const ir::Expr& mask() const { return levels.left[1]; }
  const ir::Expr& prob() const { return levels.left[2]; }
  const ir::Expr& row_term() const { return levels.left[3]; }
  std::size_t head_fields() const { return levels.head.size(); }
  std::size_t row_fields() const { return levels.row.size() + (has_row_term ? 1 : 0); }
  std::size_t col_fields() const { return levels.col.size(); }
};

ForwardParts forward_parts(const compiler::Mod& mod);

/// Is `e` a multiple of p by something that does not depend on p?
bool linear_in_p(const ir::Expr& e);

}  // namespace attune::codegen

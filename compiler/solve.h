// compiler/solve.h — a mask solved for one axis: the spaces between bounds where it holds, and where it does not
//
// A comparison becomes a bound on the axis, a conjunction the space between bounds, a disjunction a list of such
// spaces. A bound is moved across + - only where ranges prove that nothing wraps.
#pragma once

#include "compiler/tile.h"

namespace attune::compiler {

/// The space between bounds: from below, from above, on the axis solved for and on the tile's own axis.
struct Space {
  std::vector<ir::Expr> from, to;            ///< inclusive, of the axis
  std::vector<ir::Expr> tile_from, tile_to;  ///< inclusive, of the tile's axis
  ir::Expr when = truth(true);               ///< free of both axes, or already asked of the whole tile
  bool exact = true;
};
using Spaces = std::vector<Space>;

/// A Bool, and its negation, as spaces along the axis.
struct Solved {
  Spaces yes, no;
  std::vector<Stop> stops{};  ///< what gave no bounds
};

/// `axis` is Q or KV; the other one is the tile's own, whose side is set.
Solved solve(const ir::Expr& mask, ir::Input axis, Tile& tile);
inline ir::Input other(ir::Input axis) { return axis == ir::Input::KV ? ir::Input::Q : ir::Input::KV; }

/// A bound as it is where it lies within these, else the nearest of them.
ir::Expr within(const ir::Expr& y, double low, double high, ir::Ranger& range);

}  // namespace attune::compiler

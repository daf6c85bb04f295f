// compiler/solve.h — solves a mask for one axis: the ranges between bounds in which it is true or false, and bands for
// a whole tile of the other axis
//
// A comparison becomes a bound on the axis, a conjunction the space between bounds, a disjunction a list of such
// spaces. A bound moves across + - only where ranges prove that nothing wraps.
#pragma once

#include "compiler/tile.h"

namespace attune::compiler {

/// The space between lower and upper bounds, on the axis solved for and on the tile's own axis.
struct Space {
  std::vector<ir::Expr> from, to;            ///< inclusive, on the axis
  std::vector<ir::Expr> tile_from, tile_to;  ///< inclusive, on the tile's axis
  ir::Expr when = truth(true);               ///< depends on neither axis, or holds for the whole tile
  bool exact = true;
};
using Spaces = std::vector<Space>;

/// A Bool, and its negation, as spaces along the axis.
struct Solved {
  Spaces yes, no;
  std::vector<Stop> stops{};  ///< the parts that gave no bounds
};

/// `axis` is Q or KV; the other is the tile's own, and its side must be set.
Solved solve(const ir::Expr& mask, ir::Input axis, Tile& tile);
inline ir::Input other(ir::Input axis) { return axis == ir::Input::KV ? ir::Input::Q : ir::Input::KV; }

/// The bound clamped to [low, high].
ir::Expr within(const ir::Expr& y, double low, double high, ir::Ranger& range);

/// Each bound takes its most generous value over the tile. `solved` must be for `axis` and this tile.
Bands bands(const Solved& solved, ir::Input axis, Tile& tile);

}  // namespace attune::compiler

// compiler/bands.h — spaces to bands: each bound takes its most generous value over a tile of the other axis
#pragma once

#include "compiler/solve.h"

namespace attune::compiler {

/// `solved` must be for `axis` and this tile.
Bands bands(const Solved& solved, ir::Input axis, Tile& tile);

}  // namespace attune::compiler

// compiler/bands.h — spaces along an axis, each over a whole tile of the other axis: every bound takes its most
// generous value there
#pragma once

#include "compiler/solve.h"

namespace attune::compiler {

/// `solved` was solved for `axis` over this tile.
Bands bands(const Solved& solved, ir::Input axis, Tile& tile);

}  // namespace attune::compiler

// tools/picture.h — the tiles that a mask leaves, and numbers of pairs, as characters for a terminal
#pragma once

#include <string>

#include "runtime/engines/picture/svg.h"

namespace attune::tools {

/// Two rows of cells per line: a full cell is a whole block, a partial one its left half.
std::string half_blocks(const runtime::Grid& grid);
/// One row of cells per line: # full, + partial, . empty.
std::string letters(const runtime::Grid& grid);

/// A digit for each cell of every other row: 1 to 9 up to the most, a to i down to the least, 0 near 0, blank where no
/// pair is kept. Of probabilities, 9 is the row's largest.
std::string digits(const runtime::Heat& heat);

/// Whether the locale says that the terminal shows block characters.
bool locale_is_utf8();
/// Blocks or letters, by the locale.
std::string for_terminal(const runtime::Grid& grid);

}  // namespace attune::tools

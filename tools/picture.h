// tools/picture.h — tiles of a mask, and numbers of pairs, as characters for a terminal
#pragma once

#include <string>

#include "runtime/engines/picture/svg.h"

namespace attune::tools {

/// Two rows of cells per line: a full cell is a whole block, a partial one its left half.
std::string half_blocks(const runtime::Grid& grid);
/// One row of cells per line: # full, + partial, . empty.
std::string letters(const runtime::Grid& grid);

/// A digit for each cell of every other row: 1 to 9 for positive numbers (9: the largest), a to i for negative ones (i:
/// the least), 0 near 0, blank if no pair is kept. For probabilities, 9 is the row's largest.
std::string digits(const runtime::Heat& heat);

/// True if the locale's terminal shows block characters.
bool locale_is_utf8();
/// Blocks or letters, by the locale.
std::string for_terminal(const runtime::Grid& grid);

}  // namespace attune::tools

// tools/picture.h — a mask as a picture: of its tiles for a terminal, of its tiles and pairs as SVG
#pragma once

#include <string>
#include <vector>

#include "runtime/cover/tiles.h"

namespace attune::tools {

/// Tiles of one batch entry and head; where there are many, a cell stands for several along each axis.
struct Grid {
  std::int32_t rows = 0, columns = 0;      ///< cells
  std::int32_t by_row = 1, by_column = 1;  ///< tiles in a cell
  std::vector<runtime::Keep> cells;        ///< Some where the tiles of a cell differ

  runtime::Keep at(std::int32_t row, std::int32_t column) const {
    return cells[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)];
  }
};

Grid grid(const runtime::TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most);

/// Two rows of cells a line: a full cell is a block, of a partial one the left half is there.
std::string half_blocks(const Grid& grid);
/// One row of cells a line: # full, + partial, . empty.
std::string letters(const Grid& grid);

/// Does the locale say that the terminal reads blocks?
bool locale_is_utf8();
/// As the locale has it.
std::string for_terminal(const Grid& grid);

/// What an SVG shows.
struct Drawing {
  std::string title;
  std::vector<std::string> notes;  ///< below the title
  runtime::Extent extent;
  Grid grid;
  /// Every pair, row by row: is it kept? Empty for tiles alone.
  std::vector<char> pairs;
};

std::string svg(const Drawing& drawing);

}  // namespace attune::tools

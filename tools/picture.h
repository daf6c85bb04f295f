// tools/picture.h — a mask as a picture: its tiles for a terminal, its tiles and pairs as SVG
#pragma once

#include <string>
#include <vector>

#include "runtime/cover/tiles.h"

namespace attune::tools {

/// Tiles of one batch entry and head. With many tiles, a cell stands for several along each axis.
struct Grid {
  std::int32_t rows = 0, columns = 0;      ///< cells
  std::int32_t by_row = 1, by_column = 1;  ///< tiles in a cell
  std::vector<runtime::Keep> cells;        ///< Some if a cell's tiles differ

  runtime::Keep at(std::int32_t row, std::int32_t column) const {
    return cells[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)];
  }
};

Grid grid(const runtime::TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most);

/// Two rows of cells per line: a full cell is a whole block, a partial one its left half.
std::string half_blocks(const Grid& grid);
/// One row of cells per line: # full, + partial, . empty.
std::string letters(const Grid& grid);

/// Whether the locale says that the terminal shows block characters.
bool locale_is_utf8();
/// Blocks or letters, by the locale.
std::string for_terminal(const Grid& grid);

/// The contents of an SVG.
struct Drawing {
  std::string title;
  std::vector<std::string> notes;  ///< below the title
  runtime::Extent extent;
  Grid grid;
  /// For every pair, row by row, whether it is kept. Empty: only tiles are drawn.
  std::vector<char> pairs;
};

std::string svg(const Drawing& drawing);

}  // namespace attune::tools

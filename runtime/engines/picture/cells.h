// runtime/engines/picture/cells.h — the tiles of one batch entry and head as cells of a picture
#pragma once

#include <vector>

#include "runtime/engines/cover/tiles.h"

namespace attune::runtime {

/// Tiles of one batch entry and head. With many tiles, a cell stands for several along each axis.
struct Grid {
  std::int32_t rows = 0, columns = 0;      ///< cells
  std::int32_t by_row = 1, by_column = 1;  ///< tiles in a cell
  std::vector<Keep> cells;                 ///< Some if a cell's tiles differ

  Keep at(std::int32_t row, std::int32_t column) const {
    return cells[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)];
  }
};

/// At most `most` cells along each axis.
Grid grid(const TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most);

}  // namespace attune::runtime

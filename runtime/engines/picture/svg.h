// runtime/engines/picture/svg.h — a picture of a mask's tiles, of scores and of probabilities, side by side, as SVG
#pragma once

#include <string>
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

/// Numbers over the pairs of one batch entry and head, as cells; NaN: no pair of the cell is kept.
struct Heat {
  enum class Scale : std::uint8_t {
    around_zero,  ///< two colours, by sign; full at the largest magnitude
    by_row,       ///< one colour; full at the row's largest number
  };
  std::string caption;
  Scale scale = Scale::around_zero;
  std::int32_t rows = 0, columns = 0;
  std::vector<double> values;  ///< row by row
};

/// The contents of an SVG.
struct Drawing {
  std::string title;               ///< of one line or several
  std::vector<std::string> notes;  ///< below the title
  Extent extent;
  Grid grid{};  ///< without rows: no panel of tiles
  /// For every pair, row by row, whether it is kept. Empty: only tiles are drawn.
  std::vector<char> pairs{};
  std::vector<Heat> heat{};  ///< a panel each
  bool plain = false;        ///< true: only the panels, without text
};

/// Readable on light and on dark pages: a style that follows the reader's preference.
std::string svg(const Drawing& drawing);

}  // namespace attune::runtime

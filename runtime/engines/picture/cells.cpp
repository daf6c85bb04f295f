// runtime/engines/picture/cells.cpp — cells from runs of tiles
#include "runtime/engines/picture/cells.h"

#include <algorithm>

#include "runtime/machine/tensor.h"

namespace attune::runtime {

Grid grid(const TileLists& lists, std::int32_t b, std::int32_t h, std::int32_t most) {
  const Extent& e = lists.extent;
  const auto grouped = [&](std::int32_t tiles) { return (tiles + most - 1) / most; };
  Grid g;
  g.by_row = std::max(1, grouped(e.q_tiles()));
  g.by_column = std::max(1, grouped(e.kv_tiles()));
  g.rows = (e.q_tiles() + g.by_row - 1) / g.by_row;
  g.columns = (e.kv_tiles() + g.by_column - 1) / g.by_column;
  // For each cell, how many of its tiles are full, and how many are not empty.
  struct Count {
    std::int64_t all = 0, live = 0;
  };
  std::vector<Count> counts(as_size(std::int64_t{g.rows} * g.columns));
  const std::int32_t lines = lists.along_q ? e.kv_tiles() : e.q_tiles();
  const std::int32_t step = lists.along_q ? g.by_row : g.by_column;
  const std::int64_t first = (std::int64_t{lists.by_batch ? b : 0} * (lists.by_head ? e.heads : 1) +
                              (lists.by_head ? h : 0)) *
                             lines;
  for (std::int32_t line_of = 0; line_of < lines; ++line_of)
    for (std::int64_t i = lists.offsets[as_size(first + line_of)]; i < lists.offsets[as_size(first + line_of + 1)];
         ++i) {
      const Run& run = lists.runs[as_size(i)];
      for (std::int32_t at = run.begin; at < run.end;) {
        const std::int32_t cell = at / step, to = std::min(run.end, (cell + 1) * step);
        const std::int32_t row = lists.along_q ? cell : line_of / g.by_row,
                           column = lists.along_q ? line_of / g.by_column : cell;
        Count& count = counts[as_size(std::int64_t{row} * g.columns + column)];
        count.live += to - at;
        if (run.keep == Keep::All) count.all += to - at;
        at = to;
      }
    }
  g.cells.reserve(counts.size());
  for (std::int32_t r = 0; r < g.rows; ++r)
    for (std::int32_t c = 0; c < g.columns; ++c) {
      const std::int64_t tiles = std::int64_t{std::min(g.by_row, e.q_tiles() - r * g.by_row)} *
                                 std::min(g.by_column, e.kv_tiles() - c * g.by_column);
      const Count& count = counts[as_size(std::int64_t{r} * g.columns + c)];
      g.cells.push_back(count.live == 0 ? Keep::None : count.all == tiles ? Keep::All : Keep::Some);
    }
  return g;
}

}  // namespace attune::runtime

// codegen/kernels/widths.h — tables of tiles by heads' width; those of kernels that take any call, by an element's
// bytes too
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "codegen/choose/gpu_element.h"
#include "codegen/choose/kernel.h"

namespace attune::codegen {

/// The rows of the narrowest width that `holds` a call's heads, in the order to try; rows of a width follow one
/// another.
template <class Row, std::size_t R, class Holds>
std::span<const Row> narrowest_rows(const Row (&rows)[R], const Holds& holds) {
  const Row* const first = std::ranges::find_if(rows, holds);
  return {first, std::find_if(first, std::end(rows), [&](const Row& row) { return row.widths() != first->widths(); })};
}

/// A tile for elements of `bytes` bytes and heads up to `d` wide, keys and values alike.
template <class Tile>
struct WidthRow {
  int bytes, d;
  Tile tile;

  std::pair<int, int> widths() const { return {bytes, d}; }
};

/// A call's candidates.
template <class Tile, std::size_t R, std::size_t N>
std::vector<Variant> tiles_of_width(std::string_view kernel, const KernelSpec& spec, const WidthRow<Tile> (&rows)[R],
                                    const std::array<TileMember<Tile>, N>& members) {
  const int bytes = gpu_element(spec.dtype).bytes;
  const auto holds = [&](const WidthRow<Tile>& row) {
    return row.bytes == bytes && row.d >= std::max(spec.d, spec.dv);
  };
  std::vector<Variant> out;
  for (const WidthRow<Tile>& row : narrowest_rows(rows, holds)) out.push_back(variant_of(kernel, row.tile, members));
  return out;
}

}  // namespace attune::codegen

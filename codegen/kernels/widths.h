// codegen/kernels/widths.h — the tiles of kernels that take any call: by the bytes of an element, and by heads' width
#pragma once

#include <algorithm>
#include <vector>

#include "codegen/gpu_element.h"
#include "codegen/kernel.h"

namespace attune::codegen {

/// A tile for elements of `bytes` bytes and heads up to `d` wide, keys and values alike.
template <class Tile>
struct WidthRow {
  int bytes, d;
  Tile tile;
};

/// A call's candidates are the rows of the narrowest width that holds a head, in the order to try.
template <class Tile, std::size_t R, std::size_t N>
std::vector<Variant> tiles_of_width(std::string_view kernel, const KernelSpec& spec, const WidthRow<Tile> (&rows)[R],
                                    const std::array<TileMember<Tile>, N>& members) {
  const int bytes = gpu_element(spec.dtype).bytes;
  const auto holds = [&](const WidthRow<Tile>& row) {
    return row.bytes == bytes && row.d >= std::max(spec.d, spec.dv);
  };
  const WidthRow<Tile>* narrowest = std::ranges::find_if(rows, holds);
  std::vector<Variant> out;
  for (const WidthRow<Tile>* row = narrowest;
       row != std::end(rows) && row->bytes == narrowest->bytes && row->d == narrowest->d; ++row)
    out.push_back(variant_of(kernel, row->tile, members));
  return out;
}

}  // namespace attune::codegen

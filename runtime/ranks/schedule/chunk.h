// runtime/ranks/schedule/chunk.h — rows of a call's tensors, and what of them goes to another rank or comes from it
#pragma once

#include <vector>

#include "compiler/problem.h"
#include "runtime/machine/as_size.h"
#include <attune/tensor.h>

namespace attune::runtime::ranks {

/// A tensor by its rows: [B, H, S, D], packed [T, H, D]; or with a number a row, as lse has it: [B, H, S], packed
/// [H, T].
struct Rows {
  Tensor tensor;
  compiler::Layout layout = compiler::Layout::dense;
  bool numbers = false;

  bool packed() const { return layout == compiler::Layout::packed; }
  std::size_t head_dimension() const { return packed() && numbers ? 0 : 1; }
  std::size_t row_dimension() const { return packed() ? (numbers ? 1 : 0) : 2; }
  std::int64_t entries() const { return packed() ? 1 : tensor.shape[0]; }
  std::int64_t heads() const { return tensor.shape[head_dimension()]; }
  std::int64_t count() const { return tensor.shape[row_dimension()]; }
  /// Elements of a row.
  std::int64_t width() const { return numbers ? 1 : tensor.shape[as_size(tensor.rank) - 1]; }
};

/// Rows [row, row + rows) of the heads [head, head + heads) of the entries [entry, entry + entries).
struct Rect {
  std::int64_t entry = 0, head = 0, row = 0;
  std::int64_t rows = 0, heads = 1, entries = 1;
};

/// Bytes for a rank, or from it: as many, in the same order, as the chunk that the other rank names.
struct Chunk {
  int peer = 0;
  Rows of;
  Rect at;

  std::size_t bytes() const { return as_size(at.entries * at.heads * at.rows * of.width()) * size_of(of.tensor.dtype); }
};
struct Exchange {
  std::vector<Chunk> send{}, receive{};
};

}  // namespace attune::runtime::ranks

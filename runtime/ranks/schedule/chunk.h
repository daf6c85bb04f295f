// runtime/ranks/schedule/chunk.h — rows of a call's tensors, and the chunks of them that ranks exchange, to and from
// contiguous bytes
#pragma once

#include <vector>

#include <attune/tensor.h>

#include "compiler/problem.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::ranks {

/// A tensor by its rows: [B, H, S, D], packed [T, H, D]; or with one number per row, like lse: [B, H, S], packed [H,
/// T].
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
  /// The number of elements of a row.
  std::int64_t width() const { return numbers ? 1 : tensor.shape[as_size(tensor.rank) - 1]; }
};

/// Rows [row, row + rows) of the heads [head, head + heads) of the entries [entry, entry + entries).
struct Rect {
  std::int64_t entry = 0, head = 0, row = 0;
  std::int64_t rows = 0, heads = 1, entries = 1;
};

/// Bytes that go to a rank or come from it. The other rank's matching chunk has the same number of bytes in the same
/// order.
struct Chunk {
  int peer = 0;
  Rows of;
  Rect at;

  std::size_t bytes() const { return as_size(at.entries * at.heads * at.rows * of.width()) * size_of(of.tensor.dtype); }
};
struct Exchange {
  std::vector<Chunk> send{}, receive{};
};

/// Copies to or from bytes in the order [entry, head, row, column].
void pack(const Chunk& from, std::byte* into);
void unpack(const std::byte* from, const Chunk& into);
/// The chunk's first byte, if its bytes are already in this order; else null.
std::byte* in_order(const Chunk& chunk);

/// Converts each element of `from` to the type of `into`, which has the same shape.
void convert(const Tensor& from, const Tensor& into);

}  // namespace attune::runtime::ranks

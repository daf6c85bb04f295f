// runtime/ranks/schedule/chunk.cpp — chunks of tensors on the host, to and from contiguous bytes
#include "runtime/ranks/schedule/chunk.h"

#include <cstring>

#include "runtime/engines/layout.h"
#include "runtime/machine/tensor.h"

namespace attune::runtime::ranks {
namespace {

MatrixLayout matrix_of(const Rows& of, std::int64_t entry, std::int64_t head) {
  return of.numbers ? column(of.tensor, of.layout, entry, head, 0) : matrix(of.tensor, of.layout, entry, head, 0);
}

/// Calls body(address of a row's first element, bytes between columns) for the rows of a chunk, in order.
template <class Body>
void each_row(const Chunk& of, const Body& body) {
  const Rect& at = of.at;
  const auto size = static_cast<std::int64_t>(size_of(of.of.tensor.dtype));
  auto* const data = static_cast<std::byte*>(of.of.tensor.data);
  for (std::int64_t e = at.entry; e < at.entry + at.entries; ++e)
    for (std::int64_t h = at.head; h < at.head + at.heads; ++h) {
      const MatrixLayout m = matrix_of(of.of, e, h);
      for (std::int64_t i = at.row; i < at.row + at.rows; ++i)
        body(data + (m.origin + i * m.row) * size, m.column * size);
    }
}

/// Copies rows; `step(row, column, bytes)` copies either to or from `row`.
template <class Copy>
void each_run(const Chunk& of, const Copy& copy) {
  const std::size_t size = size_of(of.of.tensor.dtype);
  const std::int64_t width = of.of.width();
  each_row(of, [&](std::byte* row, std::int64_t column) {
    if (width == 1 || column == static_cast<std::int64_t>(size)) return copy(row, as_size(width) * size);
    for (std::int64_t j = 0; j < width; ++j) copy(row + j * column, size);
  });
}

}  // namespace

void pack(const Chunk& from, std::byte* into) {
  each_run(from, [&into](const std::byte* run, std::size_t bytes) {
    std::memcpy(into, run, bytes);
    into += bytes;
  });
}

void unpack(const std::byte* from, const Chunk& into) {
  each_run(into, [&from](std::byte* run, std::size_t bytes) {
    std::memcpy(run, from, bytes);
    from += bytes;
  });
}

std::byte* in_order(const Chunk& chunk) {
  const Rect& at = chunk.at;
  const MatrixLayout first = matrix_of(chunk.of, at.entry, at.head);
  const std::int64_t width = chunk.of.width();
  if ((width > 1 && first.column != 1) || (at.rows > 1 && first.row != width)) return nullptr;
  if (at.heads > 1 && matrix_of(chunk.of, at.entry, at.head + 1).origin - first.origin != at.rows * width)
    return nullptr;
  if (at.entries > 1 && matrix_of(chunk.of, at.entry + 1, at.head).origin - first.origin != at.heads * at.rows * width)
    return nullptr;
  return static_cast<std::byte*>(chunk.of.tensor.data) +
         (first.origin + at.row * first.row) * static_cast<std::int64_t>(size_of(chunk.of.tensor.dtype));
}

void convert(const Tensor& from, const Tensor& into) {
  for (std::int64_t i = 0; i < into.size(); ++i) {
    std::int64_t rest = i, there = 0, here = 0;
    for (int d = into.rank; d-- > 0;) {
      const auto dim = static_cast<std::size_t>(d);
      there += rest % into.shape[dim] * from.strides[dim];
      here += rest % into.shape[dim] * into.strides[dim];
      rest /= into.shape[dim];
    }
    store(into, here, load(from, there));
  }
}

}  // namespace attune::runtime::ranks

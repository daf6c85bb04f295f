// runtime/ranks/plan/rows.cpp — rows of a call's tensors, to and from the contiguous bytes that travel
#include "runtime/ranks/plan/rows.h"

#include <cstring>

#include "runtime/machine/tensor.h"

namespace attune::runtime::ranks {
namespace {

/// Calls body(address of a row's first element, elements between columns) for the rows of a block, in order.
template <class Body>
void each_row(const Rowed& of, std::int64_t first_entry, std::int64_t last_entry, const Block& block,
              const Body& body) {
  const auto size = static_cast<std::int64_t>(size_of(of.t.dtype));
  for (std::int64_t e = first_entry; e < last_entry; ++e)
    for (std::int64_t h = block.first_head; h < block.last_head; ++h) {
      const MatrixLayout at = of.numbers ? column(of.t, of.layout, e, h, 0) : matrix(of.t, of.layout, e, h, 0);
      for (std::int64_t i = block.row; i < block.row + block.count; ++i)
        body(static_cast<std::byte*>(of.t.data) + (at.origin + i * at.row) * size, at.column);
    }
}

std::byte* pack(const Rowed& from, std::int64_t first_entry, std::int64_t last_entry, const Block& block,
                std::byte* into) {
  const std::size_t size = size_of(from.t.dtype);
  const std::int64_t width = from.width();
  each_row(from, first_entry, last_entry, block, [&](const std::byte* row, std::int64_t column) {
    if (column == 1 || width == 1) {
      std::memcpy(into, row, static_cast<std::size_t>(width) * size);
      into += static_cast<std::size_t>(width) * size;
      return;
    }
    for (std::int64_t j = 0; j < width; ++j, into += size)
      std::memcpy(into, row + j * column * static_cast<std::int64_t>(size), size);
  });
  return into;
}

}  // namespace

std::byte* pack(const Rowed& from, const Block& block, std::byte* into) {
  return pack(from, 0, from.entries(), block, into);
}
std::byte* pack(const Rowed& from, std::int64_t entry, const Block& block, std::byte* into) {
  return pack(from, entry, entry + 1, block, into);
}

namespace {

const std::byte* unpack(const std::byte* from, std::int64_t first_entry, std::int64_t last_entry, const Block& block,
                        const Rowed& into) {
  const std::size_t size = size_of(into.t.dtype);
  const std::int64_t width = into.width();
  each_row(into, first_entry, last_entry, block, [&](std::byte* row, std::int64_t column) {
    if (column == 1 || width == 1) {
      std::memcpy(row, from, static_cast<std::size_t>(width) * size);
      from += static_cast<std::size_t>(width) * size;
      return;
    }
    for (std::int64_t j = 0; j < width; ++j, from += size)
      std::memcpy(row + j * column * static_cast<std::int64_t>(size), from, size);
  });
  return from;
}

}  // namespace

const std::byte* unpack(const std::byte* from, const Block& block, const Rowed& into) {
  return unpack(from, 0, into.entries(), block, into);
}
const std::byte* unpack(const std::byte* from, std::int64_t entry, const Block& block, const Rowed& into) {
  return unpack(from, entry, entry + 1, block, into);
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

std::vector<std::int64_t> local_rows(const Axis& axis, std::span<const int> owners) {
  std::vector<std::int64_t> rows, next;
  for (std::size_t g = 0; g < owners.size(); ++g) {
    const auto owner = static_cast<std::size_t>(owners[g]);
    if (next.size() <= owner) next.resize(owner + 1);
    rows.push_back(next[owner]);
    next[owner] += axis.grains[g].rows();
  }
  return rows;
}

}  // namespace attune::runtime::ranks

// runtime/ranks/plan/rows.h — rows of a call's tensors, to and from the contiguous bytes that travel
#pragma once

#include <attune/attention.h>

#include "runtime/engines/layout.h"
#include "runtime/ranks/plan/deal.h"

namespace attune::runtime::ranks {

/// Rows [row, row + count) of every batch entry of a tensor, of the heads [first, last).
struct Block {
  std::int64_t row = 0, count = 0;
  std::int64_t first_head = 0, last_head = 0;
};
/// [B, H, S, D], packed [T, H, D]; or with a number a row, as lse has it: [B, H, S], packed [H, T].
struct Rowed {
  const Tensor& t;
  compiler::Layout layout;
  bool numbers = false;

  std::int64_t entries() const { return layout == compiler::Layout::packed ? 1 : t.shape[0]; }
  std::int64_t width() const { return numbers ? 1 : t.shape[static_cast<std::size_t>(t.rank) - 1]; }
  std::size_t bytes(const Block& of) const {
    return static_cast<std::size_t>(entries() * (of.last_head - of.first_head) * of.count * width()) * size_of(t.dtype);
  }
};

/// Copies to or from bytes in the order [entry, head, row, column]; returns where the next go.
std::byte* pack(const Rowed& from, const Block& block, std::byte* into);
const std::byte* unpack(const std::byte* from, const Block& block, const Rowed& into);

/// The same of one entry.
std::byte* pack(const Rowed& from, std::int64_t entry, const Block& block, std::byte* into);
const std::byte* unpack(const std::byte* from, std::int64_t entry, const Block& block, const Rowed& into);

/// Each element of `from` as the type of `into`, of the same shape.
void convert(const Tensor& from, const Tensor& into);

/// Where the rows of each grain lie in the tensors of its owner.
std::vector<std::int64_t> local_rows(const Axis& axis, std::span<const int> owners);

}  // namespace attune::runtime::ranks

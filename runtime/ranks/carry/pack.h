// runtime/ranks/carry/pack.h — chunks of tensors on the host, to and from contiguous bytes
#pragma once

#include "runtime/ranks/schedule/chunk.h"

namespace attune::runtime::ranks {

/// Copies to or from bytes in the order [entry, head, row, column].
void pack(const Chunk& from, std::byte* into);
void unpack(const std::byte* from, const Chunk& into);
/// Where the chunk begins if its bytes lie in that order already; else null.
std::byte* in_order(const Chunk& chunk);

/// Each element of `from` as the type of `into`, of the same shape.
void convert(const Tensor& from, const Tensor& into);

}  // namespace attune::runtime::ranks

// runtime/ranks/carry/pack.h — chunks of tensors on the host, to and from contiguous bytes
#pragma once

#include "runtime/ranks/schedule/chunk.h"

namespace attune::runtime::ranks {

/// Copies to or from bytes in the order [entry, head, row, column].
void pack(const Chunk& from, std::byte* into);
void unpack(const std::byte* from, const Chunk& into);
/// The chunk's first byte, if its bytes are already in this order; else null.
std::byte* in_order(const Chunk& chunk);

/// Converts each element of `from` to the type of `into`, which has the same shape.
void convert(const Tensor& from, const Tensor& into);

}  // namespace attune::runtime::ranks

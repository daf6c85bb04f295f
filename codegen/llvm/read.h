// codegen/llvm/read.h — elements of captured tensors: clamped, converted, and never from outside the tensor
#pragma once

#include <span>

#include "codegen/isa.h"
#include "codegen/llvm/vec.h"
#include "compiler/mod.h"

namespace attune::codegen {

/// One index of a read.
struct ReadIndex {
  Val value;     ///< i32; unclamped
  int step = 0;  ///< 1 or -1: it rises or falls by one per lane, except where it wraps; 0: unknown
};

/// An element of the captured tensor (one per lane if an index is a vector): f32, i32 or i1.
/// `captures` points to the Frame's.
Val read_capture(Isa isa, Val captures, std::uint32_t slot, DType type, std::span<const ReadIndex> index);

}  // namespace attune::codegen

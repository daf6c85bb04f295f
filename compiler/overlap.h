// compiler/overlap.h — whether two tensors have elements in the same memory
#pragma once

#include <attune/tensor.h>

namespace attune::compiler {

/// True if a byte of one tensor is at the same address as a byte of the other. Exact for any shapes and strides, unless
/// they span more than 2^60 bytes or take more than a million steps to decide: then true. Tensors whose address ranges
/// do not meet, as those of different allocations, take a few nanoseconds.
bool share_elements(const Tensor& a, const Tensor& b);

}  // namespace attune::compiler

// runtime/cuda/maps.h — tensors of a call as the copy engine of Hopper takes them
#pragma once

#include <attune/tensor.h>

#include "codegen/cuda/args.cuh"

namespace attune::runtime::cuda {

/// Can the copy engine take boxes of [B, H, S, D], or of a packed [T, H, D]? Rows must be contiguous, other strides
/// multiples of 16 bytes, and nothing empty.
bool has_boxes(const Tensor& t);

/// Boxes of `rows` positions by 128 bytes, swizzled in shared memory.
TensorMap boxes_of(const Tensor& t, int rows);
/// The same where a row is a position of one of `heads` query heads that share a key head, head after head; `group`
/// heads share one in all.
TensorMap boxes_of_heads(const Tensor& t, int rows, int heads, std::int64_t group);

}  // namespace attune::runtime::cuda

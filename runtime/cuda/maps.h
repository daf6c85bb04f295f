// runtime/cuda/maps.h — tensors of a call as the copy engine of Hopper takes them
#pragma once

#include <attune/tensor.h>

#include "codegen/cuda/args.cuh"

namespace attune::runtime::cuda {

/// Can boxes of [B, H, S, D], or of a packed [T, H, D], be copied: contiguous rows, other strides multiples of 16
/// bytes, and nothing empty?
bool has_boxes(const Tensor& t);

/// Boxes of `rows` positions by 64 elements, as codegen/cuda/forward_sm90.cuh has them in shared memory.
TensorMap boxes_of(const Tensor& t, int rows);
/// The same of rows that `heads` query heads of a key head have in turn; `group` heads have a key head.
TensorMap boxes_of_heads(const Tensor& t, int rows, int heads, std::int64_t group);

}  // namespace attune::runtime::cuda

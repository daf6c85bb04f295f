// runtime/engines/cuda/maps.h — tensor maps (TMA descriptors) of a call's tensors
#pragma once

#include <attune/tensor.h>

#include "codegen/cuda/contract/args.cuh"

namespace attune::runtime::cuda {

/// True if TMA can copy boxes of this [B, H, S, D] or packed [T, H, D] tensor: rows are contiguous, other strides are
/// multiples of 16 bytes, and no extent is 0.
bool has_boxes(const Tensor& t);

/// Boxes of `rows` positions by 128 bytes, swizzled in shared memory.
TensorMap boxes_of(const Tensor& t, int rows);
/// The same, with rows that alternate between `heads` query heads of a key head; each key head has `group` of them.
TensorMap boxes_of_heads(const Tensor& t, int rows, int heads, std::int64_t group);
/// Boxes of q or o, if `heads` heads share a tile.
inline TensorMap query_boxes(const Tensor& t, int rows, int heads, std::int64_t group) {
  return heads == 1 ? boxes_of(t, rows) : boxes_of_heads(t, rows, heads, group);
}

}  // namespace attune::runtime::cuda

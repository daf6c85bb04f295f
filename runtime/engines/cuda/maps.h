// runtime/engines/cuda/maps.h — tensor maps: a call's tensors as Hopper's TMA takes them
#pragma once

#include <attune/tensor.h>

#include "codegen/cuda/contract/args.cuh"

namespace attune::runtime::cuda {

/// Whether boxes of [B, H, S, D], or of a packed [T, H, D], can be copied: rows are contiguous, other strides are
/// multiples of 16 bytes, and nothing is empty.
bool has_boxes(const Tensor& t);

/// Boxes of `rows` positions by 128 bytes, swizzled in shared memory.
TensorMap boxes_of(const Tensor& t, int rows);
/// The same, with rows that alternate between `heads` query heads of a key head; each key head has `group` of them.
TensorMap boxes_of_heads(const Tensor& t, int rows, int heads, std::int64_t group);
/// Boxes of q or o, where so many heads share a tile.
inline TensorMap query_boxes(const Tensor& t, int rows, int heads, std::int64_t group) {
  return heads == 1 ? boxes_of(t, rows) : boxes_of_heads(t, rows, heads, group);
}

}  // namespace attune::runtime::cuda

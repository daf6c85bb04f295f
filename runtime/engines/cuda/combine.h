// runtime/engines/cuda/combine.h — copies tensors of any strides on a device, adds parts of tensors up, merges results
#pragma once

#include "runtime/platform/nvidia/driver.h"
#include <attune/tensor.h>

namespace attune::runtime::cuda {

// Each function enqueues one kernel on a stream of the current context, which must be the device's.

/// Copies every element to a tensor of the same shape and type.
void copy_elements(const Facts& device, const Tensor& from, const Tensor& to, cu::Stream stream);
/// Loads the kernel of copy_elements, which may not happen during a capture.
void load_copy(const Facts& device, cu::Stream stream);

/// to = sum of `parts` tensors of f32 or f64 of its shape, which begin `part_stride` elements apart; or to += that sum.
struct Sum {
  Tensor first;
  int parts = 1;
  std::int64_t part_stride = 0;
  bool adds = false;
};
void add_parts(const Facts& device, const Sum& of, const Tensor& to, cu::Stream stream);

/// Results over the keys of each rank, in f32 and contiguous: o [parts, B, H, S, dv], lse and max [parts, B, H, S]; max
/// may be null.
struct Results {
  const float *o = nullptr, *lse = nullptr, *max = nullptr;
  int parts = 1;
};
/// Merges the results into dense tensors; lse and max are optional.
void combine_ranks(const Facts& device, const Results& of, const Tensor& o, const Tensor& lse, const Tensor& max,
                   cu::Stream stream);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/combine.h — tensors on a device copied whatever their strides, parts of them added up, results
// merged
#pragma once

#include "runtime/engines/cuda/driver.h"
#include <attune/tensor.h>

namespace attune::runtime::cuda {

// Each puts one kernel on a stream of the current context, which is the device's.

/// Every element, to a tensor of the same shape and type.
void copy_elements(const Facts& device, const Tensor& from, const Tensor& to, cu::Stream stream);

/// `to` becomes the sum of `parts` tensors of f32 or f64 of its shape, which begin `part_stride` elements apart, or
/// they are added to it.
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
/// Merges them into dense tensors; lse and max may not be given.
void merge_parts(const Facts& device, const Results& of, const Tensor& o, const Tensor& lse, const Tensor& max,
                 cu::Stream stream);

}  // namespace attune::runtime::cuda

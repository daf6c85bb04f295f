// codegen/cuda/add_parts.cuh — sums of the parts that ranks or launches have computed of a tensor, in their order
//
// A warp a row, rows_of_copy rows a block. Sums are of double precision, and rounded once.
#pragma once

#include "tensor_rows.cuh"
#include "types.cuh"

namespace attune {

__device__ inline double part_of(const AddArgs& args, long long i) {
  return args.from_type == Stored::f64 ? static_cast<const double*>(args.from)[i]
                                       : static_cast<double>(static_cast<const float*>(args.from)[i]);
}
__device__ inline double element(const void* from, Stored type, long long i) {
  switch (type) {
    case Stored::f64: return static_cast<const double*>(from)[i];
    case Stored::f32: return static_cast<double>(static_cast<const float*>(from)[i]);
    case Stored::f16: return static_cast<double>(low_of<f16>(static_cast<const unsigned short*>(from)[i]));
    default: return static_cast<double>(low_of<bf16>(static_cast<const unsigned short*>(from)[i]));
  }
}
__device__ inline void store(void* to, Stored type, long long i, double x) {
  const auto rounded = static_cast<float>(x);
  switch (type) {
    case Stored::f64: static_cast<double*>(to)[i] = x; break;
    case Stored::f32: static_cast<float*>(to)[i] = rounded; break;
    case Stored::f16: static_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(pack<f16>(rounded, 0)); break;
    default: static_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(pack<bf16>(rounded, 0));
  }
}

__global__ void __launch_bounds__(32 * rows_of_copy, 4) add_parts(const __grid_constant__ AddArgs args) {
  const long long row = row_of_warp();
  if (row >= rows_of(args)) return;
  const long long from = row_at(args, args.from_stride, row), to = row_at(args, args.to_stride, row);
  for (long long i = lane_of_warp(); i < args.extent[3]; i += 32) {
    const long long at = to + i * args.to_stride[3];
    double sum = args.adds ? element(args.to, args.type, at) : 0;
    for (int part = 0; part < args.parts; ++part)
      sum += part_of(args, from + i * args.from_stride[3] + part * args.part_stride);
    store(args.to, args.type, at, sum);
  }
}

}  // namespace attune

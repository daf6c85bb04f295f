// runtime/engines/cuda/combine.cpp — copies tensors of any strides on a device, adds parts of tensors up, merges
// results
#include "runtime/engines/cuda/combine.h"

#include <algorithm>
#include <limits>

#include <attune/error.h>

#include "codegen/ceil_div.h"
#include "codegen/cuda/contract/args.cuh"
#include "runtime/engines/cuda/kernels/kernels.h"
#include "runtime/engines/cuda/launches.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {
namespace {

void put(const Facts& device, std::string_view name, std::int64_t rows, void* arguments, cu::Stream stream) {
  if (rows == 0) return;
  const std::int64_t blocks = ceil_div(rows, std::int64_t{rows_of_copy});
  if (blocks > std::numeric_limits<int>::max()) throw Bug("a copy has more rows than a grid");
  const auto kernel = loaded_plain(device.index, name, {.arch = device.arch()}, stream);
  Launches launches;
  launches.launch({.kernel = kernel.get(),
                   .grid = {static_cast<unsigned>(blocks), 1, 1},
                   .threads = 32 * rows_of_copy,
                   .arguments = arguments});
  launches.put(stream, {});
}

void fill(RowsArgs& args, const Tensor& from, const Tensor& to) {
  args.from = from.data;
  args.to = to.data;
  args.bytes = static_cast<int>(size_of(from.dtype));
  std::ranges::fill(args.extent, 1);
  for (int d = 0; d < to.rank; ++d) {
    const auto i = static_cast<std::size_t>(RowsArgs::most_rank - to.rank + d), of = static_cast<std::size_t>(d);
    args.extent[i] = to.shape[of];
    args.from_stride[i] = from.strides[of];
    args.to_stride[i] = to.strides[of];
  }
}

std::int64_t rows_in(const RowsArgs& args) {
  return args.extent[3] == 0 ? 0 : args.extent[0] * args.extent[1] * args.extent[2];
}

/// Makes the copy as wide as both tensors' rows and addresses allow.
void widen(RowsArgs& args, const Tensor& from, const Tensor& to) {
  const auto size = args.bytes;
  const int wide = std::min(stored_bytes(from), stored_bytes(to));
  if (wide <= size) return;
  const int elements = wide / size;
  args.bytes = wide;
  args.extent[3] /= elements;
  for (std::size_t d = 0; d < 3; ++d) {
    args.from_stride[d] /= elements;
    args.to_stride[d] /= elements;
  }
}

}  // namespace

void copy_elements(const Facts& device, const Tensor& from, const Tensor& to, cu::Stream stream) {
  RowsArgs args{};
  fill(args, from, to);
  widen(args, from, to);
  put(device, "copy_rows", rows_in(args), &args, stream);
}

void load_copy(const Facts& device, cu::Stream stream) {
  loaded_plain(device.index, "copy_rows", {.arch = device.arch()}, stream);
}

void add_parts(const Facts& device, const Sum& of, const Tensor& to, cu::Stream stream) {
  AddArgs args{};
  fill(args, of.first, to);
  args.from_type = stored(of.first.dtype);
  args.type = stored(to.dtype);
  args.parts = of.parts;
  args.part_stride = of.part_stride;
  args.adds = of.adds;
  put(device, "add_parts", rows_in(args), &args, stream);
}

void combine_ranks(const Facts& device, const Results& of, const Tensor& o, const Tensor& lse, const Tensor& max,
                   cu::Stream stream) {
  CombineArgs args{.o_parts = of.o,
                   .lse_parts = of.lse,
                   .max_parts = of.max,
                   .o = strided(o, compiler::Layout::dense),
                   .o_type = stored(o.dtype),
                   .lse = rows(lse, compiler::Layout::dense),
                   .max = rows(max, compiler::Layout::dense),
                   .parts = of.parts,
                   .batch = static_cast<int>(o.shape[0]),
                   .heads = static_cast<int>(o.shape[1]),
                   .rows = static_cast<int>(o.shape[2]),
                   .dv = static_cast<int>(o.shape[3])};
  put(device, "combine_ranks", o.shape[0] * o.shape[1] * o.shape[2], &args, stream);
}

}  // namespace attune::runtime::cuda

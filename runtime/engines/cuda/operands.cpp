// runtime/engines/cuda/operands.cpp — a call's tensors as kernel arguments: strides, rows, and the width of copies
#include "runtime/engines/cuda/operands.h"

#include <algorithm>
#include <cstdint>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime::cuda {

void refuse_f64(const char* name) {
  throw Error("engine-type", fmt::format("the CUDA engine does not write {} as f64", name), {}, "it computes in f32",
              "give it elements of f32");
}

void refuse_rows(const char* name, const Tensor& t) {
  throw Error("engine-type", fmt::format("the CUDA engine writes {} as f32", name), {},
              fmt::format("{} holds {}", name, name_of(t.dtype)), "give it elements of f32");
}

}  // namespace attune::runtime::cuda

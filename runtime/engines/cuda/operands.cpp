// runtime/engines/cuda/operands.cpp — a call's tensors as kernels take them: strides, rows, and how wide copies may be
#include "runtime/engines/cuda/operands.h"

#include <algorithm>
#include <cstdint>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime::cuda {

int copied_bytes(std::initializer_list<const Tensor*> tensors) {
  std::uint64_t bits = 16;
  for (const Tensor* t : tensors) {
    const auto last = static_cast<std::size_t>(t->rank) - 1;
    if (t->shape[last] > 1 && t->strides[last] != 1) return 0;
    bits |= reinterpret_cast<std::uintptr_t>(t->data);
    for (std::size_t i = 0; i < last; ++i)
      if (t->shape[i] > 1) bits |= static_cast<std::uint64_t>(t->strides[i]) * size_of(t->dtype);
  }
  const auto most = static_cast<int>(bits & -bits);
  return most >= 4 ? most : 0;
}

int stored_bytes(const Tensor& t) {
  const auto row = static_cast<int>(t.shape[static_cast<std::size_t>(t.rank) - 1]) * static_cast<int>(size_of(t.dtype));
  const int most = std::min(copied_bytes({&t}), row & -row);
  return most >= 4 ? most : 0;
}

void require_writable(const char* name, const Tensor& t) {
  if (t.dtype == DType::f64)
    throw Error("engine-type", fmt::format("the CUDA engine does not write {} as f64", name), {}, "it computes in f32",
                "give it elements of f32");
}

void require_f32_rows(const char* name, const Tensor& t) {
  if (t.given() && t.dtype != DType::f32)
    throw Error("engine-type", fmt::format("the CUDA engine writes {} as f32", name), {},
                fmt::format("{} holds {}", name, name_of(t.dtype)), "give it elements of f32");
}

}  // namespace attune::runtime::cuda

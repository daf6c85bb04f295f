// runtime/attention/arrays.cpp — memory for arrays, and copies between them, on the host and on devices
#include <algorithm>
#include <cstring>
#include <limits>
#include <new>

#include <attune/error.h>
#include <attune/tensor.h>
#include <fmt/format.h>

#include "runtime/platform/memory.h"

namespace attune {
namespace {

Place placed(Line at) { return {.name = at.file ? at.file : "", .line = at.file ? at.number : 0}; }

bool is_contiguous(const Tensor& t) {
  if (t.size() == 0) return true;
  std::int64_t step = 1;
  for (auto i = static_cast<std::size_t>(t.rank); i-- > 0;) {
    if (t.shape[i] > 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

}  // namespace

namespace detail {

std::shared_ptr<void> allocate(const Device& device, DType dtype, std::span<const std::int64_t> shape) {
  const std::int64_t size = Tensor(nullptr, dtype, shape).size();
  // At least one element, so that each empty array has a unique address.
  const std::int64_t count = std::max<std::int64_t>(size, 1), width = static_cast<std::int64_t>(size_of(dtype));
  static constexpr std::align_val_t line{64};  // a cache line
  const bool fits = count <= std::numeric_limits<std::int64_t>::max() / width;
  const auto bytes = static_cast<std::size_t>(fits ? count * width : 0);
  const auto allocated = [&]() -> std::shared_ptr<void> {
    if (!fits) return nullptr;
    if (device.kind == Device::Kind::cuda) return runtime::cuda::allocate(device.index, bytes);
    void* memory = ::operator new(bytes, line, std::nothrow);
    if (!memory) return nullptr;
    std::memset(memory, 0, bytes);
    return {memory, [](void* p) { ::operator delete(p, line); }};
  };
  std::shared_ptr<void> memory = allocated();
  if (!memory)
    throw Error("no-memory",
                fmt::format("there is not enough memory for an array of {} elements of {}", size, name_of(dtype)), {},
                fmt::format("it takes {} bytes", size * static_cast<std::int64_t>(size_of(dtype))),
                "use a smaller array, or free memory first");
  return memory;
}

void require_on_host(const Tensor& tensor, const std::string& name, Line at) {
  if (tensor.device.kind == Device::Kind::cpu) return;
  throw Error("not-on-host",
              name.empty() ? "the elements are not on the host"
                           : fmt::format("the elements of `{}` are not on the host", name),
              placed(at), fmt::format("it is {} on cuda:{}", tensor.describe(), tensor.device.index),
              "copy it first: array.on(Device::cpu())");
}

}  // namespace detail

void copy(const Tensor& from, const Tensor& to, void* stream, Line at) {
  const auto refuse = [&](std::string code, std::string problem, std::string why, std::string fix) {
    return Error(std::move(code), std::move(problem), placed(at), std::move(why), std::move(fix));
  };
  for (const Tensor* t : {&from, &to})
    if (!t->given())
      throw refuse("tensor-missing", "one of the tensors of a copy is missing", "it was left out", "pass both");
  if (from.dtype != to.dtype || from.rank != to.rank || from.shape != to.shape)
    throw refuse("copy-shape", "a copy has tensors of different types or shapes",
                 fmt::format("from {} to {}", from.describe(), to.describe()), "give both the same type and shape");
  for (const Tensor* t : {&from, &to})
    if (!is_contiguous(*t))
      throw refuse("copy-strides", "a copy has a tensor that is not contiguous",
                   fmt::format("the strides of {} are not those of contiguous memory", t->describe()),
                   "copy the whole memory around it as a tensor of one dimension");
  const auto bytes = static_cast<std::size_t>(from.size()) * size_of(from.dtype);
  if (bytes == 0) return;
  if (!from.data || !to.data)
    throw refuse("tensor-null", "a tensor of a copy has no memory", "its data pointer is null",
                 "point it at its elements");
  const bool on_host = from.device.kind == Device::Kind::cpu && to.device.kind == Device::Kind::cpu;
  on_host ? static_cast<void>(std::memmove(to.data, from.data, bytes)) : runtime::cuda::copy(from, to, bytes, stream);
}

}  // namespace attune

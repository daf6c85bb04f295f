// runtime/attention/on_host.h — copies of tensors in the host's memory, for checks of calls on a device
#pragma once

#include <cstddef>
#include <vector>

#include "runtime/platform/memory.h"

namespace attune::runtime {

/// Copies of a call's tensors, which live as long as this object.
class OnHost {
 public:
  explicit OnHost(void* stream) : stream_(stream) {}

  Tensor operator()(const Tensor& t) {
    if (!t.given() || t.device.kind == Device::Kind::cpu || t.size() == 0) return t;
    std::int64_t low = 0, high = 0;  // elements before and after the first one
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
      const std::int64_t reach = (t.shape[d] - 1) * t.strides[d];
      (reach < 0 ? low : high) += reach;
    }
    const std::size_t size = size_of(t.dtype), bytes = static_cast<std::size_t>(high - low + 1) * size;
    memory_.emplace_back(bytes);
    const auto all = static_cast<std::int64_t>(bytes);
    std::byte* first = static_cast<std::byte*>(t.data) + low * static_cast<std::int64_t>(size);
    cuda::copy(Tensor(first, DType::u8, {all}, {}, t.device), Tensor(memory_.back().data(), DType::u8, {all}), bytes,
               stream_);
    Tensor out = t;
    out.device = Device::cpu();
    out.data = memory_.back().data() - low * static_cast<std::int64_t>(size);
    return out;
  }
  template <class... Tensors>
  void take(Tensors&... all) {
    ((all = (*this)(all)), ...);
  }

 private:
  void* stream_;
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace attune::runtime

// runtime/engines/call.cpp — captured tensors, read by the language's rules
#include "runtime/engines/call.h"

#include <algorithm>

#include "runtime/machine/tensor.h"

namespace attune::runtime {

ir::ReadCapture reader(std::span<const Tensor> captures) {
  return [captures](std::uint32_t slot, std::span<const std::int32_t> index) {
    const Tensor& t = captures[slot];
    std::int64_t at = 0;
    for (std::size_t i = 0; i < index.size(); ++i)
      at += std::clamp<std::int64_t>(index[i], 0, t.shape[i] - 1) * t.strides[i];
    return load(t, at);
  };
}

}  // namespace attune::runtime

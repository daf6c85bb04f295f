// tests/emulated/captured.h — captured tensors of any strides, for tests of biases
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "runtime/machine/tensor.h"
#include "tests/numerics/inputs.h"

namespace attune::tests {

/// A captured tensor of these strides, with numbers that `number` gives.
struct Captured {
  std::vector<std::byte> memory;
  Tensor tensor;

  Captured(DType type, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides,
           const std::function<double(std::int64_t)>& number)
      : memory(static_cast<std::size_t>(reach(shape, strides)) * size_of(type)), tensor(memory.data(), type, shape) {
    std::ranges::copy(strides, tensor.strides.begin());
    each_element(tensor, [&, nth = std::int64_t{0}](std::int64_t offset) mutable {
      runtime::store(tensor, offset, number(nth++));
    });
  }
  static std::int64_t reach(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides) {
    std::int64_t last = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
    return last + 1;
  }
};
inline double waves(std::int64_t i) { return std::sin(0.37 * static_cast<double>(i) + static_cast<double>(i % 7)); }

}  // namespace attune::tests

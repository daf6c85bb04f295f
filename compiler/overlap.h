// compiler/overlap.h — whether two tensors have elements in the same memory
#pragma once

#include <cstdint>

#include <attune/tensor.h>

namespace attune::compiler {

/// The addresses that a tensor spans; none without elements. `known` is false if they may be more than 2^60.
struct AddressRange {
  std::int64_t begin = 0, end = 0;
  bool known = true;

  bool meets(const AddressRange& other) const {
    return !known || !other.known || (begin < other.end && other.begin < end);
  }
};
inline AddressRange address_range(const Tensor& t) {
  // Without branches: every call asks for each of its tensors.
  constexpr std::int64_t most = std::int64_t{1} << 55;  // elements along a dimension
  std::int64_t below = 0, above = 1;
  bool empty = false, beyond = false;
  for (std::size_t i = 0; i < Tensor::max_rank; ++i) {
    const bool has = static_cast<std::int32_t>(i) < t.rank;
    const std::int64_t steps = has ? t.shape[i] - 1 : 0;
    std::int64_t far = 0;
    const bool wide = __builtin_mul_overflow(has ? t.strides[i] : 0, steps, &far) | (far > most) | (far < -most);
    beyond |= wide;
    far = wide ? 0 : far;
    empty |= steps < 0;
    below += far < 0 ? far : 0;
    above += far > 0 ? far : 0;
  }
  if (empty) return {};
  if (beyond) return {0, 0, false};
  const auto at = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data));
  const auto size = static_cast<std::int64_t>(size_of(t.dtype));
  return {at + below * size, at + above * size, true};
}

/// True if a byte of one tensor is at the same address as a byte of the other. Exact for any shapes and strides, unless
/// they span more than 2^60 bytes or take more than a million steps to decide: then true.
bool share_elements(const Tensor& a, const Tensor& b);

}  // namespace attune::compiler

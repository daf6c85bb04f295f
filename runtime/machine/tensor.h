// runtime/machine/tensor.h — reading and writing single elements of a borrowed tensor on the host
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <attune/tensor.h>

namespace attune::runtime {

/// The index of an element whose place is known to be 0 or more.
inline std::size_t as_size(std::int64_t n) { return static_cast<std::size_t>(n); }

/// An element as a double; i64 keeps its low 32 bits, as in a kernel.
double load(const Tensor& tensor, std::int64_t offset);
/// Rounds to the tensor's type (nearest even).
void store(const Tensor& tensor, std::int64_t offset, double value);

/// 64-bit: tensors of more than 2^31 elements work.
inline std::int64_t offset(const Tensor& t, std::int64_t i = 0, std::int64_t j = 0, std::int64_t k = 0,
                           std::int64_t l = 0) {
  return i * t.strides[0] + j * t.strides[1] + k * t.strides[2] + l * t.strides[3];
}

}  // namespace attune::runtime

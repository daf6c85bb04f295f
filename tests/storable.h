// tests/storable.h — brings random numbers into the range of the element type that stores them
#pragma once

#include <algorithm>

#include <attune/tensor.h>

namespace attune::tests {

/// The nearest value in the range of this type's elements.
inline double storable(DType dtype, double value) {
  switch (dtype) {
    case DType::i16: return std::clamp(value, -0x1p15, 0x1p15 - 1);
    case DType::i8: return std::clamp(value, -0x1p7, 0x1p7 - 1);
    case DType::u8: return std::clamp(value, 0.0, 0x1p8 - 1);
    default: return value;
  }
}

}  // namespace attune::tests

// tests/storable.h — random numbers brought into the range of the element that they are to be stored in
#pragma once

#include <algorithm>

#include <attune/tensor.h>

namespace attune::tests {

/// The nearest value that an element of this type may be made of.
inline double storable(DType dtype, double value) {
  switch (dtype) {
    case DType::i16: return std::clamp(value, -0x1p15, 0x1p15 - 1);
    case DType::i8: return std::clamp(value, -0x1p7, 0x1p7 - 1);
    case DType::u8: return std::clamp(value, 0.0, 0x1p8 - 1);
    default: return value;
  }
}

}  // namespace attune::tests

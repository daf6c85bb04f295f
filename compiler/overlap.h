// compiler/overlap.h — whether two tensors have elements in the same memory
#pragma once

#include <attune/tensor.h>

namespace attune::compiler {

/// Whether an element of one lies where an element of the other does. Of one shape; exact where their strides are equal
/// but for signs, as those of views that are shifted or reversed are. Otherwise true where the memory that they span
/// meets.
bool share_elements(const Tensor& a, const Tensor& b);

}  // namespace attune::compiler

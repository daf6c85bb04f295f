// compiler/overlap.h — whether two tensors have elements in the same memory
#pragma once

#include <attune/tensor.h>

namespace attune::compiler {

/// True if an element of one tensor is at the same address as an element of the other. Both have the same shape. Exact
/// if their strides are equal except for signs, as for shifted or reversed views. Otherwise conservative: true if the
/// address ranges that they span overlap.
bool share_elements(const Tensor& a, const Tensor& b);

}  // namespace attune::compiler

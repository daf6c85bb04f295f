// runtime/engines/captures.h — captured tensors, read by the language's rules
#pragma once

#include <span>

#include "ir/eval.h"
#include <attune/tensor.h>

namespace attune::runtime {

/// Reads an element of a captured tensor: indices are clamped to the tensor, types widened to double.
ir::ReadCapture reader(std::span<const Tensor> captures);

}  // namespace attune::runtime

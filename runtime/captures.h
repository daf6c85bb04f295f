// runtime/captures.h — the tensors and parameters behind a Mod's slots, read by the language's rules
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ir/eval.h"
#include <attune/expr.h>
#include <attune/tensor.h>

namespace attune::runtime {

/// Reads an element of a captured tensor: indices are clamped to the tensor, types widened to double.
ir::ReadCapture reader(std::span<const Tensor> captures);
/// The current values of parameters, by slot.
std::vector<double> values(std::span<const std::shared_ptr<const detail::ParamCell>> params);

}  // namespace attune::runtime

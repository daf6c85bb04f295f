// c/tensor.h — DLPack's tensors as attune's
#pragma once

#include <attune/c.h>
#include <attune/tensor.h>

#include <string>

namespace attune::c {

/// None for NULL. Errors call the tensor by this name.
Tensor tensor_of(const attune_tensor* from, const std::string& name);

}  // namespace attune::c

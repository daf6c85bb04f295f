// python/core/torch_operator.h — torch.ops.attune.forward and backward, which compiled graphs call, without Python
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "python/core/handle.h"

namespace attune::python {

/// Puts kernels into attune::forward and attune::backward, for a key of the dispatcher. Calls that they do not take, or
/// do not know yet, go to attune::forward_slowly and attune::backward_slowly. False if the loaded torch has no stable
/// ABI.
bool fill_operators(const std::string& key);

/// From here on the kernels take calls of these texts, the fifth of which are the names of captures, and of this scale.
/// `captures`: for each one its kind (f, i or b) and its dimensions, as in "f2i1".
void learn_operator(Handle& handle, const std::vector<std::string>& texts, const std::string& captures,
                    std::optional<double> scale);

}  // namespace attune::python

// python/core/torch_operators.h — attune's kernels for operators of torch: attune's own, those whose gradients torch's
// autograd records, and those among which torch's scaled_dot_product_attention chooses
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <utility>
#include <vector>

namespace attune::python {

namespace nb = nanobind;

/// Puts a kernel into an operator, `space::name`, for a key of the dispatcher; without a key only asks. `kind`:
/// "recorded", "compiled" or "activated". `arguments`: the name of each and its letter, as of free_arguments();
/// `results`: a letter for each. `make`: attune.torch's function that gives the TorchCall of an operator's call, or
/// says why there is none. False if the operator is not as attune's kernel expects it, or torch has no C ABI of
/// operators.
bool place_operator(const std::string& name, const std::string& key, const std::string& kind,
                    const std::vector<std::pair<std::string, std::string>>& arguments, const std::string& results,
                    nb::object make);
/// Gives the activated operators their own kernels back.
void deactivate_operators();

/// Why the call of an activated operator that is being handed over is torch's own.
std::string why_torch();

}  // namespace attune::python

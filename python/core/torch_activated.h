// python/core/torch_activated.h — attune's kernels that replace those of torch's attentions, without Python
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "python/core/handle.h"

namespace attune::python {

/// What besides q, k and v a call of torch's scaled_dot_product_attention has.
struct Asked {
  int rank = 0;        ///< of the mask; 0: there is none
  unsigned ones = 0;   ///< bit i: dimension i of the mask has one element
  bool keeps = false;  ///< a mask of Bools
  bool causal = false;
  std::optional<double> scale{};

  bool operator==(const Asked&) const = default;
};

/// Puts attune's kernels above those that aten's `operators` have. Each call that they do not take, or do not know yet,
/// goes to the operator of the same name among `attune`'s. `key`: of the dispatcher, none for each operator's own.
/// False if the loaded torch has no stable ABI.
bool activate_torch(const std::vector<std::string>& operators, const std::optional<std::string>& key);
/// The end of that.
void deactivate_torch();
/// From here on the kernels take calls that ask for this.
void learn_torch(Handle& handle, const Asked& asked);

}  // namespace attune::python

// tests/elements.h — a tensor's elements, in the form that tests compare
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/machine/tensor.h"

namespace attune::tests {

/// Every element in logical order, whatever the strides.
inline std::vector<double> elements(const Tensor& t) {
  Tensor::Extents n{1, 1, 1, 1};
  std::copy_n(t.shape.begin(), t.rank, n.begin());
  std::vector<double> out;
  for (std::int64_t a = 0; a < n[0]; ++a)
    for (std::int64_t b = 0; b < n[1]; ++b)
      for (std::int64_t c = 0; c < n[2]; ++c)
        for (std::int64_t d = 0; d < n[3]; ++d) out.push_back(runtime::load(t, runtime::offset(t, a, b, c, d)));
  return out;
}

}  // namespace attune::tests

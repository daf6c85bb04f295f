// runtime/engines/infinity.h — the constant infinity; the maximum over no scores is -infinity
#pragma once

#include <limits>

namespace attune::runtime {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace attune::runtime

// runtime/engines/infinity.h — what the maximum of no scores is the negative of
#pragma once

#include <limits>

namespace attune::runtime {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace attune::runtime

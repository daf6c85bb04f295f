// codegen/ceil_div.h — division that rounds up, of whole numbers
#pragma once

#include <type_traits>

namespace attune {

/// The number of pieces of `size` that cover `n`. Neither is negative.
template <class N, class Size>
constexpr auto ceil_div(N n, Size size) {
  using Whole = std::common_type_t<N, Size>;
  return (static_cast<Whole>(n) + static_cast<Whole>(size) - 1) / static_cast<Whole>(size);
}

/// The smallest multiple of `size` that is at least `n`.
template <class N, class Size>
constexpr auto round_up(N n, Size size) {
  return ceil_div(n, size) * static_cast<std::common_type_t<N, Size>>(size);
}

}  // namespace attune

// runtime/machine/as_size.h — the index of an element whose place is known to be 0 or more
#pragma once

#include <cstddef>
#include <cstdint>

namespace attune::runtime {

inline std::size_t as_size(std::int64_t n) { return static_cast<std::size_t>(n); }

}  // namespace attune::runtime

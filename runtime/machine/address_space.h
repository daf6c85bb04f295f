// runtime/machine/address_space.h — how much memory the process may still map
#pragma once

#include <cstddef>

namespace attune::runtime {

/// Maps so many bytes and gives them back. Allocates nothing, so that it may run before static objects are made.
bool can_map(std::size_t bytes);
/// Is it limited, as by ulimit -v?
bool is_address_space_limited();

}  // namespace attune::runtime

// runtime/machine/address_space.h — how much memory the process may still map
#pragma once

#include <cstddef>

namespace attune::runtime {

/// Returns true if `bytes` bytes can be mapped, and unmaps them. Allocates nothing, so that it may run before static
/// objects are constructed.
bool can_map(std::size_t bytes);
/// True if the address space is limited, e.g. by ulimit -v.
bool is_address_space_limited();

}  // namespace attune::runtime

// runtime/machine/limits.h — how much memory and how many CPUs the system lets this process have
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>

namespace attune::runtime {

/// Returns true if `bytes` bytes can be mapped, and unmaps them. Allocates nothing, so that it may run before static
/// objects are constructed.
bool can_map(std::size_t bytes);
/// True if the address space is limited, e.g. by ulimit -v.
bool is_address_space_limited();

/// The least limit of the control groups that this process is in, of version 1 or 2, in CPUs; none where there is no
/// limit. Threads beyond it only wait: the kernel stops all of them for the rest of each tenth of a second. `root`:
/// where /proc and /sys are.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace attune::runtime

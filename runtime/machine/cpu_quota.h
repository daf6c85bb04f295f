// runtime/machine/cpu_quota.h — the CPU quota of a container
#pragma once

#include <filesystem>
#include <optional>

namespace attune::runtime {

/// The least limit of the control groups that this process is in, of version 1 or 2, in CPUs; none where there is no
/// limit. Threads beyond it only wait: the kernel stops all of them for the rest of each tenth of a second. `root`:
/// where /proc and /sys are.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace attune::runtime

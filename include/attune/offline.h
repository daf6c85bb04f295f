// include/attune/offline.h — bundles of kernels compiled ahead of time, and calls that never compile
#pragma once

#include <attune/cxx20.h>

#include <cstddef>
#include <span>
#include <string>

namespace attune::offline {

/// Adds a bundle, a file that `attune compile` wrote: from now on calls look for kernels in it too. The file may be
/// replaced later, but not changed in place. An Error if it cannot be read or is damaged.
void load(const std::string& path);
/// The same for a bundle in memory, e.g. one embedded in the program. The bytes must stay until the process ends.
void load_bytes(std::span<const std::byte> bytes);

/// Allows or forbids compiling kernels; allowed unless ATTUNE_JIT=off. When it is forbidden, a missing kernel is an
/// Error `kernel-missing`, which says how to build it.
void jit(bool allowed);
bool jit();

}  // namespace attune::offline

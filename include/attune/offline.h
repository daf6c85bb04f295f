// include/attune/offline.h — kernels that were compiled beforehand: bundles, and calls that never compile
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace attune::offline {

/// From now on kernels are looked for in this bundle too, a file that `attune compile` wrote. It may be replaced later,
/// but not changed in place. An Error if it cannot be read, or is damaged.
void load(const std::string& path);
/// The same of bytes in memory: those that a program has embedded, say. They stay for as long as the process lives.
void load_bytes(std::span<const std::byte> bytes);

/// May kernels be compiled? Yes, unless it is said here or by ATTUNE_JIT=off. Without, a kernel that is nowhere is an
/// Error `kernel-missing`, which says how to build it.
void jit(bool allowed);
bool jit();

}  // namespace attune::offline

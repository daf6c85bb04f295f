// runtime/engines/workspace.cpp — memory for one call, allocated piece by piece from the caller's bytes or from
// attune's own
#include "runtime/engines/workspace.h"

#include <fmt/format.h>

#include <attune/error.h>

namespace attune::runtime {

std::span<std::byte> checked_workspace(std::span<std::byte> callers, std::size_t needed, std::string_view ask) {
  if (callers.size() < needed)
    throw Error("workspace-small", fmt::format("the workspace has {} bytes", callers.size()), {},
                fmt::format("this call needs {}", needed), fmt::format("ask {}", ask));
  if (reinterpret_cast<std::uintptr_t>(callers.data()) % alignment != 0)
    throw Error("workspace-alignment", "the workspace does not begin at a multiple of 64 bytes", {},
                "kernels read whole cache lines of it", "allocate it with an alignment of 64");
  return callers;
}

Workspace workspace_of(std::span<std::byte> callers, const Memory& own, std::size_t needed) {
  return Workspace(callers.empty() ? own.bytes() : checked_workspace(callers, needed));
}

}  // namespace attune::runtime

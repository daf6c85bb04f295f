// runtime/engines/emulated/resident.h — a resident compiler: one clang process compiles many sources
#pragma once

#include <string>

namespace attune::runtime::emulated {

/// Compiles a source in a resident process and returns the object file. `command` is clang++ with all options except
/// input and output; messages call the source `name`. Empty if there is no such process or if it fails: the caller then
/// compiles the source in a process of its own, which also reports what is wrong.
std::string object_by_resident(const std::string& command, const std::string& name, const std::string& source);

}  // namespace attune::runtime::emulated

// runtime/platform/emulated/compiler.h — the system's C++ compiler, found at first use: compiles CUDA source to a host
// library, many in one clang process
#pragma once

#include <string>
#include <vector>

#include "codegen/source/source.h"
#include "runtime/platform/nvidia/nvrtc.h"

namespace attune::runtime::emulated {

/// Compiles a source in a resident process and returns the object file. `command` is clang++ with all options except
/// input and output; messages call the source `name`. Empty if there is no such process or if it fails: the caller then
/// compiles the source in a process of its own, which also reports what is wrong.
std::string object_by_resident(const std::string& command, const std::string& name, const std::string& source);

struct HostCompiler {
  std::string command;  ///< e.g. clang++
  std::string linker;   ///< e.g. ld.gold
  std::string version;  ///< the first line of its version text; empty: there is no compiler
  std::string refusal;  ///< the reason why there is no compiler
};
const HostCompiler& host_compiler();

/// The compiler's input in addition to the source and the usual device files, as text.
std::string further_input();

/// A change of a device file, for tests that the emulator finds mistakes: the first `from` in the file becomes `to`.
struct Patch {
  std::string file, from, to;
};
/// Applies to every kernel that is compiled from now on.
void set_patches(std::vector<Patch> patches);

/// A library that exports one symbol, an attune::emulated::Kernel.
/// Throws a Bug with the log if the compiler refuses the source.
cuda::Binary compile(const codegen::Source& source);

}  // namespace attune::runtime::emulated

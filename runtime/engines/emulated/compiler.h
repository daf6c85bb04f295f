// runtime/engines/emulated/compiler.h — the system's C++ compiler, found at first use: compiles CUDA source to a host
// library
#pragma once

#include <string>
#include <vector>

#include "codegen/source/source.h"
#include "runtime/engines/cuda/nvrtc.h"

namespace attune::runtime::emulated {

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

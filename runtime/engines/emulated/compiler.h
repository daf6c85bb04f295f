// runtime/engines/emulated/compiler.h — the system's compiler of C++, found at first use: from a page of CUDA to a
// library of the host
#pragma once

#include <string>
#include <vector>

#include "codegen/source.h"
#include "runtime/engines/cuda/nvrtc.h"

namespace attune::runtime::emulated {

struct HostCompiler {
  std::string command;  ///< g++, say
  std::string version;  ///< its own first line; empty: there is none
  std::string refusal;  ///< why there is none
};
const HostCompiler& host_compiler();

/// What it is given besides the page and the usual device files, as text.
std::string further_input();

/// A change of a device file, for tests of what is found: the first `from` in it becomes `to`.
struct Patch {
  std::string file, from, to;
};
/// Of every kernel that is compiled from now on.
void set_patches(std::vector<Patch> patches);

/// A library with three functions: attune_kernel, attune_arguments, and where it looks for the machine. Throws a Bug
/// with the log if the compiler refuses the page.
cuda::Binary compile(const codegen::Source& source);

}  // namespace attune::runtime::emulated

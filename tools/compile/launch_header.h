// tools/compile/launch_header.h — a C and C++ header that says how to launch a GPU kernel without attune
#pragma once

#include <string>

#include "codegen/choose/choose.h"

namespace attune::tools {

/// What the header describes: a forward kernel, or, without a choice, the kernel that writes tile lists.
struct Launch {
  const compiler::Mod& mod;
  const codegen::KernelChoice* choice;
  bool offsets64, listed;
  std::string name, symbol, target;
};
std::string launch_header(const Launch& launch);

}  // namespace attune::tools

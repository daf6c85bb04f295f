// tools/launch_header.h — a C header that tells how to launch a GPU kernel without attune
#pragma once

#include <string>

#include "codegen/choose.h"

namespace attune::tools {

/// What a launch needs to know of a forward kernel; without a choice, of the kernel that writes its lists.
struct Launch {
  const compiler::Mod& mod;
  const codegen::ForwardChoice* choice;
  bool wide, listed;
  std::string name, symbol, target;
};
std::string launch_header(const Launch& launch);

}  // namespace attune::tools

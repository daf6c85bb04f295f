// tools/launch_header.h — how to launch a kernel of a GPU without attune, as a header of C
#pragma once

#include <string>

#include "codegen/choose.h"

namespace attune::tools {

/// What a launch is told of a forward kernel; or of the kernel that writes its lists, where there is no choice.
struct Launch {
  const compiler::Mod& mod;
  const codegen::ForwardChoice* choice;
  bool wide, listed;
  std::string name, symbol, target;
};
std::string launch_header(const Launch& launch);

}  // namespace attune::tools

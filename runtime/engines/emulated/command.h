// runtime/engines/emulated/command.h — a command of the shell, and what it says
#pragma once

#include <string>

namespace attune::runtime::emulated {

struct Ran {
  int status = -1;
  std::string said;
};
Ran ran(const std::string& command);

std::string quoted(const std::string& text);

}  // namespace attune::runtime::emulated

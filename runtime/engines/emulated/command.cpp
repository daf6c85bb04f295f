// runtime/engines/emulated/command.cpp — a command of the shell, and what it says
#include "runtime/engines/emulated/command.h"

#include <array>
#include <cstdio>

#include <sys/wait.h>

namespace attune::runtime::emulated {

Ran ran(const std::string& command) {
  Ran out;
  FILE* const pipe = popen((command + " 2>&1").c_str(), "re");
  if (!pipe) return out;
  std::array<char, 4096> some;
  for (std::size_t n; (n = std::fread(some.data(), 1, some.size(), pipe)) > 0;) out.said.append(some.data(), n);
  const int status = pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

}  // namespace attune::runtime::emulated

// tools/version.h — attune's version, and this process's command line
#pragma once

#include <string>
#include <string_view>

namespace attune::tools {

std::string_view version();
/// The commit at configure time, as git describes it; empty without git.
std::string_view commit();
/// This process's command line, with quotes where a shell needs them.
std::string command_line();
/// The model name of this machine's processor.
std::string processor();
/// Now, as 2026-11-21T21:30:00Z.
std::string timestamp();

}  // namespace attune::tools

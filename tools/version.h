// tools/version.h — attune's version, and the command line that runs
#pragma once

#include <string>
#include <string_view>

namespace attune::tools {

std::string_view version();
/// The commit at configure time, as git describes it; empty without git.
std::string_view commit();
/// The command line that attune_main was called with, with quotes where a shell needs them.
std::string command_line();
void keep_command_line(int argc, const char* const* argv);
/// The model name of this machine's processor.
std::string processor();
/// Now, as 2026-11-21T21:30:00Z.
std::string timestamp();

}  // namespace attune::tools

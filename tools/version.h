// tools/version.h — which attune this is, and what was asked of it
#pragma once

#include <string>
#include <string_view>

namespace attune::tools {

std::string_view version();
/// What the build was configured at, as git describes it; empty where there was no git.
std::string_view commit();
/// This process's command line, quoted where a shell would need it.
std::string command_line();
/// The model of this machine's processor, as it calls itself.
std::string processor();
/// Now, as 2026-11-21T21:30:00Z.
std::string timestamp();

}  // namespace attune::tools

// tools/line_editor.h — lines edited by libedit, in a build with it
#pragma once

#include "tools/line_reader.h"

namespace attune::tools {

/// Null in a build without libedit. Standard input and output must be terminals.
std::unique_ptr<LineReader> line_editor(const std::string& prompt, const std::filesystem::path& history,
                                        Complete complete);

}  // namespace attune::tools

// tools/line_editor.h — lines edited by libedit, where attune was built with it
#pragma once

#include "tools/line_reader.h"

namespace attune::tools {

/// None where there is no libedit. Standard input and output are terminals.
std::unique_ptr<LineReader> line_editor(const std::string& prompt, const std::filesystem::path& history,
                                        Complete complete);

}  // namespace attune::tools

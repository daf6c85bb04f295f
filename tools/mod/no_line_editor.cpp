// tools/mod/no_line_editor.cpp — a build without libedit: lines come as the terminal sends them
#include "tools/mod/line_reader.h"

namespace attune::tools {

std::unique_ptr<LineReader> line_editor(const std::string&, const std::filesystem::path&, Complete) { return nullptr; }

}  // namespace attune::tools

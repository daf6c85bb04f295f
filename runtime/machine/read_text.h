// runtime/machine/read_text.h — a file of text that the user names
#pragma once

#include <filesystem>
#include <string>

namespace attune::runtime {

/// All of a file, or of a pipe. Throws an Error, whose advice is `fix`, where there is none or it cannot be read.
std::string read_text(const std::filesystem::path& path, const std::string& fix);

}  // namespace attune::runtime

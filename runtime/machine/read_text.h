// runtime/machine/read_text.h — a file of text that the user names
#pragma once

#include <filesystem>
#include <string>

namespace attune::runtime {

/// The whole text of a file or a pipe. Throws an Error, whose advice is `fix`, if the file does not exist or cannot be
/// read.
std::string read_text(const std::filesystem::path& path, const std::string& fix);

}  // namespace attune::runtime

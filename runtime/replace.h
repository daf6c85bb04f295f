// runtime/replace.h — a file written in one step: who reads it sees all of the old one or all of the new one
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace attune::runtime {

/// Whether a file must outlive a loss of power from the moment it is replaced. One that is checked when read need not.
enum class Durable { no, yes };

/// Written to `temporary` first, which ends in XXXXXX and is on the same file system, readable by its owner alone.
/// Empty, or why it could not be; then nothing is left behind.
std::string replace_file(const std::filesystem::path& path, std::string_view text, std::string temporary,
                         Durable durable);

}  // namespace attune::runtime

// runtime/replace.h — files written in one step: who reads one sees all of what was written, or nothing of it
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

/// Puts a text at the end, so that those of several processes do not mix. Empty, or why it could not be.
std::string append_file(const std::filesystem::path& path, std::string_view text);

}  // namespace attune::runtime

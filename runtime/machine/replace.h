// runtime/machine/replace.h — files written in one step: a reader sees all of a file, or nothing
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace attune::runtime {

/// yes: the file must survive a loss of power as soon as it is replaced. A file that is checked when read need not.
enum class Durable { no, yes };

/// Writes to `temporary` first, which ends in XXXXXX, is on the same file system and is readable by its owner alone.
/// Returns an empty text, or the error; then nothing is left behind.
std::string replace_file(const std::filesystem::path& path, std::string_view text, std::string temporary,
                         Durable durable);

/// Appends a text in one piece, so that texts of several processes do not mix. Returns an empty text, or the error.
std::string append_file(const std::filesystem::path& path, std::string_view text);

}  // namespace attune::runtime

// tools/write_files.h — the files that a verb writes: all of them, or none
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace attune::tools {

struct FileBytes {
  std::filesystem::path path;  ///< see is_stdout
  std::string bytes;
};

/// - and /dev/stdout: the bytes are printed.
bool is_stdout(const std::filesystem::path& path);

/// Checks every path, writes each file beside its final place, and renames them when all are written: a failure, or a
/// signal that ends the process, leaves none of them behind. Writes to what a symbolic link leads to. Throws an Error
/// for what is no regular file.
void write_files(std::span<const FileBytes> files);

}  // namespace attune::tools

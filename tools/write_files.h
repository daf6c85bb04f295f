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

/// True for - and /dev/stdout, whose bytes are printed.
bool is_stdout(const std::filesystem::path& path);

/// Checks every path, writes each file next to its final place, and renames them when all are written: a failure, or a
/// signal that ends the process, leaves none of them behind. Writes to the target of a symbolic link. Throws an Error
/// if a target is not a regular file.
void write_files(std::span<const FileBytes> files);

}  // namespace attune::tools

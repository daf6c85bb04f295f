// tools/output/output.h — what a verb prints on stdout, and the files that it writes: all of them, or none
#pragma once

#include <filesystem>
#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace attune::tools {

/// Thrown if the reader of a pipe has gone. The program then ends quietly, as by SIGPIPE.
struct ClosedPipe {};

void write_out(std::string_view text);
/// Writes the text and a newline.
void write_line(std::string_view text);
template <class... T>
void print_out(fmt::format_string<T...> format, T&&... values) {
  write_out(fmt::format(format, std::forward<T>(values)...));
}

/// JSON as text. Bytes that are not UTF-8, which paths may contain, become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
/// On one line, or indented.
void write_json(const nlohmann::ordered_json& value, int indent = -1);

/// Flushes stdout. Throws if anything printed so far, by whatever code, could not be written.
void flush_out();

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

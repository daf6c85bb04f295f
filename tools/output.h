// tools/output.h — prints on stdout for verbs; a failed write is an Error
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>

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

}  // namespace attune::tools

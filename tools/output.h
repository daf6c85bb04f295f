// tools/output.h — what verbs print on stdout: a write that fails is an Error
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>

namespace attune::tools {

/// Thrown where the reader of a pipe has gone. The program ends quietly, as SIGPIPE would end it.
struct ClosedPipe {};

void write_out(std::string_view text);
/// The text and the end of its line.
void write_line(std::string_view text);
template <class... T>
void print_out(fmt::format_string<T...> format, T&&... values) {
  write_out(fmt::format(format, std::forward<T>(values)...));
}

/// JSON as text. Bytes that are no UTF-8, as paths may hold, become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
/// On one line, or indented.
void write_json(const nlohmann::ordered_json& value, int indent = -1);

/// Throws unless all that was printed so far, by anything, has arrived.
void flush_out();

}  // namespace attune::tools

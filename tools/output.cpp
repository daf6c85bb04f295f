// tools/output.cpp — prints on stdout for verbs; a failed write is an Error
#include "tools/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include <attune/error.h>

namespace attune::tools {
namespace {

[[noreturn]] void refuse_output() {
  if (errno == EPIPE) throw ClosedPipe{};
  throw Error("output-unwritable", "the output cannot be written", {.name = "stdout"},
              errno ? std::strerror(errno) : "an earlier write failed",
              "check where stdout goes, and the space on its disk");
}

}  // namespace

void write_out(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) refuse_output();
}

void write_line(std::string_view text) {
  write_out(text);
  write_out("\n");
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

void write_json(const nlohmann::ordered_json& value, int indent) { write_line(json_text(value, indent)); }

void flush_out() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) refuse_output();
}

}  // namespace attune::tools

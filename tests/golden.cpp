// tests/golden.cpp — compares a text with the committed one, or writes it under ATTUNE_APPROVE=1
#include "tests/golden.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/catch.h"
#include "tools/output/line_diff.h"

namespace attune::tests {
namespace {

namespace fs = std::filesystem;

bool is_on(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value && std::string_view(value) != "0" && std::string_view(value) != "false";
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) FAIL("cannot write " << path.string());
}

void compare(const fs::path& path, std::string_view text) {
  std::string got(text);
  if (got.empty() || got.back() != '\n') got += '\n';  // a text file ends in a newline
  const bool known = fs::exists(path);
  const std::string expected = known ? read(path) : "";
  if (known && expected == got) {
    SUCCEED(path.string());
    return;
  }
  if (is_on("ATTUNE_APPROVE")) {
    if (is_on("CI")) FAIL("ATTUNE_APPROVE is for a developer's machine: CI compares, it never writes");
    write(path, got);
    WARN("approved " << path.string());
    return;
  }
  FAIL_CHECK((known ? "differs from " : "there is no ")
             << path.string() << "\n"
             << tools::whole(tools::diff_lines(expected, got))
             << "if the new text (+) is right: ./dev approve, and review the diff");
}

}  // namespace

void golden(std::string_view name, std::string_view text) {
  compare(fs::path(ATTUNE_TESTS) / "golden" / (std::string(name) + ".txt"), text);
}

void golden_error(std::string_view code, std::string_view text) {
  compare(fs::path(ATTUNE_TESTS) / "errors" / (std::string(code) + ".txt"), text);
}

}  // namespace attune::tests

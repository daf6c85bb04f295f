// tests/golden.cpp — compare a text with the committed one, or write it under ATTUNE_APPROVE=1
#include "tests/golden.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace attune::tests {
namespace {

namespace fs = std::filesystem;

bool is_on(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value && std::string_view(value) != "0" && std::string_view(value) != "false";
}

std::vector<std::string> lines(std::string_view text) {
  std::vector<std::string> out;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
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
  if (got.empty() || got.back() != '\n') got += '\n';  // a text file ends its last line
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
             << diff(expected, got) << "if the new text (+) is right: ./dev approve, and review the diff");
}

}  // namespace

// The longest common subsequence over lines: quadratic, and goldens are pages.
std::string diff(std::string_view expected, std::string_view got) {
  const auto a = lines(expected), b = lines(got);
  std::vector<std::vector<std::size_t>> same(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = a.size(); i-- > 0;)
    for (std::size_t j = b.size(); j-- > 0;)
      same[i][j] = a[i] == b[j] ? same[i + 1][j + 1] + 1 : std::max(same[i + 1][j], same[i][j + 1]);

  std::string out;
  std::size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    if (i < a.size() && j < b.size() && a[i] == b[j])
      out += "  " + a[i++] + "\n", ++j;
    else if (i < a.size() && (j == b.size() || same[i + 1][j] >= same[i][j + 1]))
      out += "- " + a[i++] + "\n";
    else
      out += "+ " + b[j++] + "\n";
  }
  return out;
}

void golden(std::string_view name, std::string_view text) {
  compare(fs::path(ATTUNE_TESTS) / "golden" / (std::string(name) + ".txt"), text);
}

void golden_error(std::string_view code, std::string_view text) {
  compare(fs::path(ATTUNE_TESTS) / "errors" / (std::string(code) + ".txt"), text);
}

}  // namespace attune::tests

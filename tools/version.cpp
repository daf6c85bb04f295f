// tools/version.cpp — attune's version, and the command line that runs
#include "tools/verbs.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <iterator>
#include <vector>

namespace attune::tools {
namespace {

std::vector<std::string> words;

}  // namespace

std::string_view version() { return ATTUNE_VERSION; }

std::string_view commit() { return ATTUNE_COMMIT; }

std::string command_line() {
  std::string out;
  for (std::string word : words) {
    const auto is_plain = [](unsigned char c) {
      return std::isalnum(c) || (c && std::string_view("-_./:,=").find(static_cast<char>(c)) != std::string_view::npos);
    };
    if (word.empty() || !std::ranges::all_of(word, is_plain)) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

void keep_command_line(int argc, const char* const* argv) {
  words.assign(argv, argv + argc);
  // The program's folder does not affect measurements.
  if (argc > 0) words[0] = words[0].substr(words[0].rfind('/') + 1);
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  return "unknown";
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  char text[32];
  if (!gmtime_r(&now, &utc) || !std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)) return "";
  return text;
}

}  // namespace attune::tools

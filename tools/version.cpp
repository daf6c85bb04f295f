// tools/version.cpp — attune's version, and the command line that runs
#include "tools/verbs.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime/attention/offline/request.h"

namespace attune::tools {
namespace {

std::vector<std::string> words;

}  // namespace

std::string_view version() { return ATTUNE_VERSION; }

std::string_view commit() { return ATTUNE_COMMIT; }

std::string command_line() {
  std::string out;
  for (const std::string& word : words) {
    const auto is_plain = [](unsigned char c) {
      return std::isalnum(c) || (c && std::string_view("-_./:,=").find(static_cast<char>(c)) != std::string_view::npos);
    };
    const bool plain = !word.empty() && std::ranges::all_of(word, is_plain);
    out += (out.empty() ? "" : " ") + (plain ? word : runtime::shell_quoted(word));
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

std::string timestamp(std::time_t at) {
  std::tm utc{};
  char text[32];
  const bool has_form = gmtime_r(&at, &utc) && std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) != 0;
  return has_form ? text : "?";
}

}  // namespace attune::tools

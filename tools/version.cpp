// tools/version.cpp — attune's version, and this process's command line
#include "tools/version.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <fstream>
#include <iterator>

namespace attune::tools {

std::string_view version() { return ATTUNE_VERSION; }

std::string_view commit() { return ATTUNE_COMMIT; }

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::string out;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\0', at), all.size());
    std::string word = all.substr(at, end - at);
    // The program's folder does not affect measurements.
    if (at == 0) word = word.substr(word.rfind('/') + 1);
    const auto is_plain = [](unsigned char c) {
      return std::isalnum(c) || (c && std::string_view("-_./:,=").find(static_cast<char>(c)) != std::string_view::npos);
    };
    if (word.empty() || !std::ranges::all_of(word, is_plain)) {
      std::string quoted = "'";
      for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
      word = quoted + "'";
    }
    out += (out.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return out;
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

// tools/mod/line_reader.cpp — reads lines without editing, and finds the word to complete, for any editor
#include "tools/mod/line_reader.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iostream>

namespace attune::tools {
namespace {

class PlainReader : public LineReader {
 public:
  explicit PlainReader(std::string prompt) : prompt_(::isatty(STDIN_FILENO) ? std::move(prompt) : "") {}

  std::optional<std::string> next() override {
    std::fputs(prompt_.c_str(), stdout);
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }

 private:
  std::string prompt_;
};

}  // namespace

std::unique_ptr<LineReader> line_reader(std::string prompt, const std::filesystem::path& history, Complete complete) {
  if (::isatty(STDIN_FILENO) && ::isatty(STDOUT_FILENO))
    if (auto editor = line_editor(prompt, history, std::move(complete))) return editor;
  return std::make_unique<PlainReader>(std::move(prompt));
}

std::string_view last_word(std::string_view line) {
  const auto is_of_word = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == ':'; };
  std::size_t at = line.size();
  while (at > 0 && is_of_word(static_cast<unsigned char>(line[at - 1]))) --at;
  std::string_view word = line.substr(at);
  // A minus and a colon may stand before a name: `q-kv`, `c?a:b`. Options and commands follow a blank or nothing.
  const bool starts = at == 0 || line[at - 1] == ' ';
  if (!starts || (!word.starts_with("--") && !(word.starts_with(':') && at == 0))) {
    const std::size_t last = word.find_last_of("-:");
    if (last != std::string_view::npos) word.remove_prefix(last + 1);
  }
  return word;
}

std::vector<std::string> beginning_with(std::string_view word, std::vector<std::string> words) {
  std::erase_if(words, [&](const std::string& one) { return !one.starts_with(word); });
  std::ranges::sort(words);
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

}  // namespace attune::tools

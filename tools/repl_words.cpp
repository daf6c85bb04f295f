// tools/repl_words.cpp — a line of attune repl as words, and its mod as options of a verb
#include "tools/repl_words.h"

#include <algorithm>
#include <fmt/format.h>

#include <attune/error.h>

namespace attune::tools {

std::pair<std::string, std::string> first_word(std::string_view line) {
  constexpr std::string_view blanks = " \t\r";
  const auto trim = [&](std::string_view text) {
    const std::size_t begin = text.find_first_not_of(blanks);
    return begin == std::string_view::npos ? std::string_view()
                                           : text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
  };
  line = trim(line);
  const std::size_t end = std::min(line.find_first_of(blanks), line.size());
  return {std::string(line.substr(0, end)), std::string(trim(line.substr(end)))};
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  bool within = false;
  char quote = 0;
  for (const char c : text) {
    if (quote == 0 && (c == ' ' || c == '\t')) {
      within = false;
      continue;
    }
    if (!within) out.emplace_back();
    within = true;
    if (c == quote)
      quote = 0;
    else if (quote == 0 && (c == '\'' || c == '"'))
      quote = c;
    else
      out.back() += c;
  }
  if (quote != 0)
    throw Error("stray-argument", "a quote is not closed", {.text = std::string(text), .begin = 0, .end = text.size()},
                fmt::format("there is no second {}", quote), "close it");
  return out;
}

std::vector<std::string> arguments(const TextOptions& mod) {
  std::vector<std::string> out;
  for (const auto& [option, member] :
       {std::pair{"--capture=", &TextOptions::captures}, std::pair{"--param=", &TextOptions::params},
        std::pair{"--let=", &TextOptions::lets}})
    for (const std::string& one : mod.*member) out.push_back(option + one);
  for (const auto& [option, member] :
       {std::pair{"--score=", &TextOptions::score}, std::pair{"--mask=", &TextOptions::mask},
        std::pair{"--prob=", &TextOptions::prob}, std::pair{"--sink=", &TextOptions::sink},
        std::pair{"--score=", &TextOptions::bare}})
    if (mod.*member) out.push_back(option + *(mod.*member));
  return out;
}

}  // namespace attune::tools

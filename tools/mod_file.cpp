// tools/mod_file.cpp — a mod as a small file: one line per expression, sub-expression, capture and parameter
#include "tools/mod_file.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>
#include <sstream>
#include <utility>

#include "ir/parse.h"
#include "runtime/machine/read_text.h"

namespace attune::tools {
namespace {

template <class Member>
struct Word {
  const char* word;
  Member TextOptions::*member;
};
constexpr std::array<Word<std::optional<std::string>>, 4> expressions{{{"score", &TextOptions::score},
                                                                       {"mask", &TextOptions::mask},
                                                                       {"prob", &TextOptions::prob},
                                                                       {"sink", &TextOptions::sink}}};
constexpr std::array<Word<std::vector<std::string>>, 3> assignments{
    {{"capture", &TextOptions::captures}, {"param", &TextOptions::params}, {"let", &TextOptions::lets}}};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// The NAME in NAME=VALUE.
std::string_view name_in(std::string_view assignment) { return trimmed(assignment.substr(0, assignment.find('='))); }

/// The key that a line assigns: mask, or capture slope.
std::string given_by(std::string_view line) {
  const std::string_view word = line.substr(0, line.find_first_of(" \t"));
  const bool named = std::ranges::any_of(assignments, [&](const auto& one) { return word == one.word; });
  return named ? fmt::format("{} {}", word, name_in(trimmed(line.substr(word.size())))) : std::string(word);
}

}  // namespace

std::vector<std::string> mod_words() {
  std::vector<std::string> out;
  for (const auto& [word, member] : expressions) out.push_back(word);
  for (const auto& [word, member] : assignments) out.push_back(word);
  return out;
}

bool add_to_mod(TextOptions& mod, std::string_view line) {
  line = trimmed(line);
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view word = line.substr(0, end), rest = trimmed(line.substr(end));
  for (const auto& [name, member] : expressions)
    if (word == name) {
      mod.*member = std::string(rest);
      return true;
    }
  for (const auto& [name, member] : assignments)
    if (word == name) {
      std::vector<std::string>& all = mod.*member;
      const auto old = std::ranges::find(all, name_in(rest), [](const std::string& one) { return name_in(one); });
      if (old != all.end())
        *old = std::string(rest);
      else
        all.emplace_back(rest);
      return true;
    }
  return false;
}

TextOptions read_mod(const std::filesystem::path& path) {
  std::istringstream file(runtime::read_text(path, "name a file of a mod"));
  TextOptions out;
  std::set<std::string, std::less<>> given;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view text = trimmed(line);
    if (text.empty() || text.starts_with('#')) continue;
    const std::string what = given_by(text);
    const auto at = [&, line = line](std::string_view word) {
      const std::size_t begin = line.find(word);
      return Place{.name = path.string(), .line = number, .text = line, .begin = begin, .end = begin + word.size()};
    };
    if (add_to_mod(out, text)) {
      if (given.insert(what).second) continue;
      throw Error("bad-mod", fmt::format("`{}` is given twice", what), at(trimmed(text)),
                  "an earlier line of the file gives it too", "leave one of the lines out");
    }
    const std::string word(text.substr(0, text.find(' ')));
    const std::vector<std::string> words = mod_words();
    const auto near = ir::nearest(word, words);
    throw Error("bad-mod", fmt::format("a mod has no `{}`", word), at(word),
                fmt::format("a line begins with one of {}", fmt::join(words, ", ")),
                near ? fmt::format("did you mean {}?", *near) : "write, for example: mask kv <= q");
  }
  return out;
}

void put_before(TextOptions& mod, const TextOptions& file) {
  for (const auto& [word, member] : expressions)
    if (!(mod.*member)) mod.*member = file.*member;
  for (const auto& [word, member] : assignments) {
    std::vector<std::string> all = file.*member;
    for (const std::string& own : mod.*member) {
      const auto old = std::ranges::find(all, name_in(own), [](const std::string& one) { return name_in(one); });
      if (old != all.end())
        *old = own;
      else
        all.push_back(own);
    }
    mod.*member = std::move(all);
  }
}

std::string mod_text(const TextOptions& mod) {
  std::string out;
  for (const auto& [word, member] : assignments)
    for (const std::string& one : mod.*member) out += fmt::format("{} {}\n", word, one);
  for (const auto& [word, member] : expressions)
    if (mod.*member) out += fmt::format("{} {}\n", word, *(mod.*member));
  return out;
}

}  // namespace attune::tools

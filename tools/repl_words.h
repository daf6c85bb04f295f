// tools/repl_words.h — a line of attune repl as words, and its mod as options of a verb
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/text.h"

namespace attune::tools {

/// The first word of a line, and the rest without blanks around it.
std::pair<std::string, std::string> first_word(std::string_view line);

/// Splits words as a shell does: at blanks, with quotes around words that contain some.
std::vector<std::string> words_of(std::string_view text);

/// The mod as command-line options.
std::vector<std::string> arguments(const TextOptions& mod);

}  // namespace attune::tools

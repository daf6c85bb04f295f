// tools/line_reader.h — lines that a user types, with history and completion, or that a file or a pipe has
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attune::tools {

class LineReader {
 public:
  virtual ~LineReader() = default;
  /// Without its end; none at the end of the input. A line that was given up with Ctrl-C is empty.
  virtual std::optional<std::string> next() = 0;
};

/// What a word may become that begins so; `line` is all before it.
using Complete = std::function<std::vector<std::string>(std::string_view line, std::string_view word)>;

/// With libedit where standard input and output are terminals and attune was built with it: then lines are edited,
/// kept in `history` (nowhere if that is empty), and completed at Tab. Else lines as they come; `prompt` is for
/// terminals.
std::unique_ptr<LineReader> line_reader(std::string prompt, const std::filesystem::path& history, Complete complete);

/// What a word is made of, for completion: letters, digits, _, and a : or - before them.
std::string_view last_word(std::string_view line);
/// The words that begin with this one, in order, each once.
std::vector<std::string> beginning_with(std::string_view word, std::vector<std::string> words);

}  // namespace attune::tools

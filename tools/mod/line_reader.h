// tools/mod/line_reader.h — lines that a user types, with history and completion, or lines of a file or a pipe
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
  /// A line without its newline; nothing at the end of the input. A line abandoned by Ctrl-C is empty.
  virtual std::optional<std::string> next() = 0;
};

/// The completions of `word`; `line` is the text before it.
using Complete = std::function<std::vector<std::string>(std::string_view line, std::string_view word)>;

/// If standard input and output are terminals and attune was built with libedit, lines are edited, kept in `history`
/// (nowhere if that is empty), and completed at Tab. Otherwise lines are read plainly; `prompt` is for terminals.
std::unique_ptr<LineReader> line_reader(std::string prompt, const std::filesystem::path& history, Complete complete);

/// The last word of a line, for completion: letters, digits, _, and a : or - before them.
std::string_view last_word(std::string_view line);
/// The words that begin with this one, sorted, without repeats.
std::vector<std::string> beginning_with(std::string_view word, std::vector<std::string> words);

/// Null in a build without libedit. Standard input and output must be terminals.
std::unique_ptr<LineReader> line_editor(const std::string& prompt, const std::filesystem::path& history,
                                        Complete complete);

}  // namespace attune::tools

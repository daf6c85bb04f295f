// tools/history.h — results of attune bench that were kept in files, and new ones beside them
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace attune::tools {

/// Lines of JSON in a file, each a result with when, where and by which attune it was measured.
class History {
 public:
  /// What to add to and what to compare with, each as NAME or FILE. The latter is read at once, so that both may be the
  /// same. An Error where it is not there, or holds what attune bench does not write.
  History(const std::optional<std::string>& save, const std::optional<std::string>& compare);

  /// Keeps a line as attune bench --json prints it. What it is beside earlier ones, if that is asked for.
  std::optional<nlohmann::ordered_json> note(const nlohmann::ordered_json& line) const;

 private:
  std::filesystem::path save_;
  std::vector<nlohmann::ordered_json> earlier_;
  std::string against_;
};

/// A NAME is a file below the user's state folder, where a name has no / and does not end in .jsonl.
std::filesystem::path history_file(const std::string& name_or_file);

/// What `note` gave, as a line of text.
std::string in_words(const nlohmann::ordered_json& compared);

}  // namespace attune::tools

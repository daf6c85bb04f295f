// tools/history.h — stored results of attune bench, and comparisons with new ones
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace attune::tools {

/// Lines of JSON in a file. Each is a result with its date, machine and version of attune.
class History {
 public:
  /// The file to add to and the file to compare with, each as NAME or FILE. They may be the same, because the second is
  /// read at once. Throws an Error if the second is missing or has lines that attune bench does not write.
  History(const std::optional<std::string>& save, const std::optional<std::string>& compare);

  /// Stores a line as attune bench --json prints it. Returns its comparison with earlier ones, if asked for.
  std::optional<nlohmann::ordered_json> note(const nlohmann::ordered_json& line) const;

 private:
  std::filesystem::path save_;
  std::vector<nlohmann::ordered_json> earlier_;
  std::string against_;
};

/// A NAME, which has no / and does not end in .jsonl, means a file below the user's state folder.
std::filesystem::path history_file(const std::string& name_or_file);

/// The result of `note` as a line of text.
std::string in_words(const nlohmann::ordered_json& compared);

}  // namespace attune::tools

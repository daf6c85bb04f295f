// tools/mod_file.h — a mod as a small file: one line per expression, sub-expression, capture and parameter
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text.h"

namespace attune::tools {

/// The words that a line may begin with: score, mask, prob, sink, let, capture, param.
std::vector<std::string> mod_words();
/// Adds a line such as `let distance=f32(kv - q)`. False if it begins with none of the words.
bool add_to_mod(TextOptions& mod, std::string_view line);

/// Skips lines that are empty or begin with #. Errors name the file and the line.
TextOptions read_mod(const std::filesystem::path& path);
/// Adds to `mod` what only `file` has. Names of `file` come first, because names of `mod` may use them.
void put_before(TextOptions& mod, const TextOptions& file);
/// The text that read_mod reads.
std::string mod_text(const TextOptions& mod);

}  // namespace attune::tools

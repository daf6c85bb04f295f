// tools/mod_file.h — a mod as a small file: a line for each expression, sub-expression, capture and parameter
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tools/text.h"

namespace attune::tools {

/// What a line may begin with: score, mask, prob, sink, let, capture, param.
std::vector<std::string> mod_words();
/// One more line: `let distance=f32(kv - q)`. False if it begins with none of the words.
bool add_to_mod(TextOptions& mod, std::string_view line);

/// Lines that are empty or begin with # say nothing. An Error names the file and the line.
TextOptions read_mod(const std::filesystem::path& path);
/// What read_mod reads.
std::string mod_text(const TextOptions& mod);

}  // namespace attune::tools

// tools/options/text.h — options that make an Attention from text: --score, --mask, --prob, --sink, --let, --capture,
// --param; a mod as a file
#pragma once

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <attune/error.h>

#include "runtime/attention/offline/written.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attune::tools {

using runtime::Captures, runtime::Owned, runtime::TextAttention, runtime::read_tensor, runtime::npy_of,
    runtime::require_word;

struct TextOptions : runtime::Written {
  /// Also --mod, whose lines the other options replace.
  void add_options_to(CLI::App& verb, Captures allowed);
  /// Adds these options, and the expression that stands without an option; `what`: its meaning, for the help.
  void add_to(CLI::App& verb, const std::string& what = any_bare);
  static constexpr const char* any_bare = "a mask if it is a Bool, else a score";
};

/// runtime::build(), and a line on stderr for each legal but doubtful thing: a division of Ints that is always 0, a
/// parameter or captured tensor that no expression reads.
TextAttention built(const TextOptions& options, Captures allowed, const runtime::MakeCapture& make = {},
                    const Device& device = Device::cpu());

/// Prints only these lines, for verbs that build an attention many times.
void tell_doubts(const TextOptions& options);

/// --exact, for GPU kernels: the part of an Attention that expressions do not determine.
struct ExactOption {
  std::optional<std::string> word;

  CLI::Option& add_to(CLI::App& verb);
  void check() const;
  std::optional<bool> asked() const;
};

/// The Error of an option that does not go with others.
Error misused(const std::string& option, std::string why, std::string fix);
/// The Error of an option that only kernels of a GPU have, where the target is none.
Error needs_gpu(const std::string& option);

/// Refuses a verb that has no expression to work on.
void require_expression(const runtime::Written& written, const std::string& verb);

/// What stands between separators: one text more than there are separators.
std::vector<std::string> split(std::string_view text, char at);

/// An option that takes words separated by commas. A value of only commas gives one empty word. With CLI11's own
/// delimiter such a value would give no words, and the next option would become the value.
CLI::Option* add_words(CLI::App& verb, const std::string& name, std::vector<std::string>& into,
                       const std::string& meaning);

/// --dtype of a call's q, k, v and o. `otherwise`: the meaning of leaving it out, for the help.
CLI::Option* add_call_type(CLI::App& verb, std::string& into, const std::string& otherwise = "");
/// The type by its word (f32, f16, bf16 or e4m3), or an Error that names the option.
DType call_type(const std::string& word, const std::string& option = "--dtype");

/// --target emulated:ARCH: the target becomes `cuda`, and the emulated GPU replaces this machine's from then on. Throws
/// an Error for an unknown name. Other targets stay as they are.
void take_target(std::string& target);

/// Refuses a size out of range; `option` is named.
void require_size(const std::string& option, std::int64_t value, std::int64_t least, std::int64_t most);

/// Refuses a time in seconds that is not above 0 and finite.
void require_seconds(const std::string& option, double value);

/// An option's number. Throws an Error that names the option unless the whole text is a number.
double number(const std::string& option, const std::string& text);

/// What a mod has any number of, by the words that options and files have for it: capture, param, let.
struct Assignment {
  const char* word;
  std::vector<std::string> TextOptions::*member;
};
inline constexpr std::array<Assignment, 3> assignments{
    {{"capture", &TextOptions::captures}, {"param", &TextOptions::params}, {"let", &TextOptions::lets}}};

/// A text without blanks around it.
std::string_view trimmed(std::string_view text);
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
/// The same as options of a command line.
std::vector<std::string> mod_arguments(const TextOptions& mod);

}  // namespace attune::tools

// tools/text.h — the options that make an Attention of text: --score, --mask, --prob, --sink, --let, --capture, --param
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <attune/attune.h>

#include "tools/npy.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attune::tools {

/// What a captured tensor may be given as.
enum class Captures { Files, FilesOrTypes };

struct TextOptions {
  std::optional<std::string> score, mask, prob, sink;
  std::optional<std::string> bare;  ///< an expression without an option, where a verb takes one
  std::vector<std::string> lets, captures, params;

  void add_to(CLI::App& verb, Captures allowed);
};

/// --exact, which expressions do not tell of an Attention: of kernels of a GPU.
struct ExactOption {
  std::optional<std::string> word;

  CLI::Option& add_to(CLI::App& verb);
  void check() const;
  std::optional<bool> asked() const;
};

/// Text made real, with the memory of its captures.
struct TextAttention {
  Attention attention;
  std::map<std::string, Owned, std::less<>> captures;
  std::vector<std::string> without_data;  ///< captures given as a type and a shape
};

/// Data for a capture that is given as a type and a shape.
using MakeCapture = std::function<Owned(DType type, std::span<const std::int64_t> shape)>;

/// `allowed` as it was for `add_to`. A bare expression is a mask if it is a Bool, else a score. Without `make`,
/// captures given as a type and a shape have no data. `device`: where captures with data go.
TextAttention build(const TextOptions& options, Captures allowed, const MakeCapture& make = {},
                    const Device& device = Device::cpu());

/// The same on that device: a copy, but for the host.
Owned moved(const Owned& from, const Device& to);

/// Refuses a verb without any expression to work on.
void require_expression(const TextOptions& options, const std::string& verb);

/// Refuses a word that the option does not take.
void require_word(const std::string& option, const std::string& word, std::span<const std::string> words);

/// A number as an option gives it: the whole text, or an Error that names the option.
double number(const std::string& option, const std::string& text);

}  // namespace attune::tools

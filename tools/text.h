// tools/text.h — options that make an Attention from text: --score, --mask, --prob, --sink, --let, --capture, --param
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

/// The forms in which a captured tensor may be given.
enum class Captures { Files, FilesOrTypes };

struct TextOptions {
  std::optional<std::string> score, mask, prob, sink;
  std::optional<std::string> bare;  ///< an expression without an option, if a verb takes one
  std::vector<std::string> lets, captures, params;

  void add_to(CLI::App& verb, Captures allowed);
};

/// --exact, for GPU kernels: the part of an Attention that expressions do not tell.
struct ExactOption {
  std::optional<std::string> word;

  CLI::Option& add_to(CLI::App& verb);
  void check() const;
  std::optional<bool> asked() const;
};

/// An Attention made from text, with the memory of its captures.
struct TextAttention {
  Attention attention;
  std::map<std::string, Owned, std::less<>> captures;
  std::vector<std::string> without_data;  ///< captures given as a type and a shape
};

/// Makes data for a capture that is given as a type and a shape.
using MakeCapture = std::function<Owned(DType type, std::span<const std::int64_t> shape)>;

/// `allowed`: as for `add_to`. A bare expression is a mask if it is a Bool, else a score. Without `make`,
/// captures given as a type and a shape have no data. `device`: where captures with data go.
TextAttention build(const TextOptions& options, Captures allowed, const MakeCapture& make = {},
                    const Device& device = Device::cpu());

/// The same tensor on that device: a copy, except on the host.
Owned moved(const Owned& from, const Device& to);

/// Refuses a verb that has no expression to work on.
void require_expression(const TextOptions& options, const std::string& verb);

/// Refuses a word that the option does not take.
void require_word(const std::string& option, const std::string& word, std::span<const std::string> words);

/// An option's number: the whole text is one, or an Error names the option.
double number(const std::string& option, const std::string& text);

}  // namespace attune::tools

// tools/text.h — options that make an Attention from text: --score, --mask, --prob, --sink, --let, --capture, --param
#pragma once

#include <optional>
#include <string>

#include "runtime/offline/written.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace attune::tools {

using runtime::Captures, runtime::Owned, runtime::TextAttention, runtime::read_npy, runtime::npy_of,
    runtime::require_word;

struct TextOptions : runtime::Written {
  void add_to(CLI::App& verb, Captures allowed);
};

/// --exact, for GPU kernels: the part of an Attention that expressions do not tell.
struct ExactOption {
  std::optional<std::string> word;

  CLI::Option& add_to(CLI::App& verb);
  void check() const;
  std::optional<bool> asked() const;
};

/// Refuses a verb that has no expression to work on.
void require_expression(const runtime::Written& written, const std::string& verb);

/// An option's number: the whole text is one, or an Error names the option.
double number(const std::string& option, const std::string& text);

}  // namespace attune::tools

// compiler/spell.h — a Mod as text that parses back to it, for commands and files
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/mod.h"

namespace attune::compiler {

/// Expressions in terms of the names of the Mod's captures and parameters. Empty: the default.
struct Spelt {
  std::string score, mask, prob, sink;

  /// The non-empty ones, under the names that options and manifests use.
  std::vector<std::pair<std::string, std::string>> named() const;
};

/// Spells a lowered Mod. Parsed with the same captures and parameters, and lowered, the text gives the same Mod: reads
/// that a callable made and dropped are read and dropped again.
Spelt spell(const Mod& mod);

}  // namespace attune::compiler

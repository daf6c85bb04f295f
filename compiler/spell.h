// compiler/spell.h — a Mod as text that makes it once more, for commands and files
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "compiler/mod.h"

namespace attune::compiler {

/// Expressions by the names of the Mod's captures and parameters. Empty: as it is without.
struct Spelt {
  std::string score, mask, prob, sink;

  /// Those that are there, by the names that options and manifests give them.
  std::vector<std::pair<std::string, std::string>> named() const;
};

/// Of a Mod as it was lowered. Read as text with the same captures and parameters, it is the same Mod when it is
/// lowered: what a callable read and then dropped is read, and dropped.
Spelt spell(const Mod& mod);

}  // namespace attune::compiler

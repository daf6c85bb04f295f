// compiler/spell.h — a Mod as text that parses back to it, for commands and files; an expression as a C++ lambda and a
// Python function
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/mod.h"
#include "ir/node.h"

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

enum class Language : std::uint8_t { cpp, python };

/// The function of a part ("score", "mask", "prob" or "sink") that makes this expression, node by node: captures and
/// parameters are variables of their names. Empty if there is no readable function: the expression is long or deep,
/// computes with literals only, or a name means something else in the language.
std::string lambda(const ir::Expr& root, std::string_view part, const ir::Signature& names, Language language);

}  // namespace attune::compiler

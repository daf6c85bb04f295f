// compiler/lambdas.h — expressions as C++ lambdas and Python functions
#pragma once

#include <string>
#include <string_view>

#include "ir/node.h"

namespace attune::compiler {

enum class Language : std::uint8_t { cpp, python };

/// The function of a part ("score", "mask", "prob" or "sink") that makes this expression, node by node: captures and
/// parameters are variables of their names. Empty if there is no readable function: the expression is long or deep,
/// computes with literals only, or a name means something else in the language.
std::string lambda(const ir::Expr& root, std::string_view part, const ir::Signature& names, Language language);

}  // namespace attune::compiler

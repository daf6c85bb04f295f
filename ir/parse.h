// ir/parse.h — text to Expr; mistakes are Errors with a caret under the user's text
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ir/node.h"

namespace attune::ir {

/// The meaning of names in a text, and the text's purpose.
struct Scope {
  std::string name = "expression";  ///< the text's name in an Error: --score
  std::uint32_t inputs = ~0u;       ///< bit(Input) of every input that may be read
  std::optional<Type> expected{};   ///< an Int widens to Float; anything else is an Error
  const Signature* signature = nullptr;
  std::map<std::string, Expr, std::less<>> lets{};  ///< named expressions: --let, or the letters of a rule
};

inline constexpr std::size_t max_text = std::size_t{1} << 20;  ///< bytes
inline constexpr std::size_t max_nodes = 200'000;              ///< nodes per text
inline constexpr int max_nesting = 1200;                       ///< depth of brackets, prefixes and arguments

Expr parse(std::string_view text, const Scope& scope);

/// True for a name of the language (a variable, a function, a word). Captures, parameters and lets may not use it.
bool is_reserved(std::string_view name);
/// True for a valid name: a letter or _, then letters, digits, _.
bool is_name(std::string_view text);
/// The candidate closest to a mistyped name, if one is close enough.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);

}  // namespace attune::ir

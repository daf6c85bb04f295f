// ir/named.h — the language's names: mods by name, which mean the same as in attune/mods.h, and advice on words from
// other languages
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ir/node.h"

namespace attune::ir {

/// Advice on what to write instead of a word from another language: "write && for `and`". Empty if there is none.
std::string_view advice_on(std::string_view word);

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// One argument: a captured tensor, named without an index, or a number.
struct NamedArgument {
  std::string_view name;
  Type type = Type::F32;  ///< of the tensor's elements, or of the number: an Int widens to Float
  int rank = -1;          ///< of the tensor; -1: a number
  bool is_share = false;  ///< true for a number above 0 and up to 1
  bool given() const { return !name.empty(); }
};

/// One form of a named mod. Its text reads its arguments by their names, and s, p or coordinates.
struct NamedMod {
  std::string_view name;
  std::array<NamedArgument, 3> takes;
  std::string_view text;

  std::size_t count() const;
  /// The form as a call: alibi(slope).
  std::string shown() const;
};

/// True for a number that is certainly not above 0 and up to 1, such as the literal 2.
bool is_no_share(const Expr& number);
inline constexpr const char* why_a_share =
    "it is the fraction of pairs that dropout keeps, and their probabilities are divided by it";
inline constexpr const char* fix_of_a_share = "write a number above 0 and up to 1";

std::span<const NamedMod> named_mods();
bool is_named_mod(std::string_view name);

}  // namespace attune::ir

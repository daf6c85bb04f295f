// ir/names.h — advice on words from other languages, for messages about names
#pragma once

#include <string_view>

namespace attune::ir {

/// Advice on what to write instead of a word from another language: "write && for `and`". Empty if there is none.
std::string_view advice_on(std::string_view word);

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace attune::ir

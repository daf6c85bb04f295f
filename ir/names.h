// ir/names.h — advice on words of other languages, for messages about names
#pragma once

#include <string_view>

namespace attune::ir {

/// What to write for a word that another language has: "write && for `and`". Empty when there is nothing to say.
std::string_view advice_on(std::string_view word);

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace attune::ir

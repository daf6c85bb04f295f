// ir/utf8.h — the first code point of a text, for messages that count columns or name a character
#pragma once

#include <cstddef>
#include <string_view>

namespace attune::ir {

struct CodePoint {
  char32_t value;     ///< U+FFFD when the bytes are not UTF-8
  std::size_t bytes;  ///< 1 when the bytes are not UTF-8
};

/// `text` is not empty. Overlong forms, surrogates and values beyond U+10FFFF are not UTF-8.
inline CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  constexpr char32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {0xfffd, 1};
  char32_t value = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return {0xfffd, 1};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  if (value < smallest[bytes] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return {0xfffd, 1};
  return {value, bytes};
}

}  // namespace attune::ir

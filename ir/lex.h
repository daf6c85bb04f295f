// ir/lex.h — text to tokens; the first code point of a text, for messages that count columns or name a character
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ir/node.h"

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

enum class Tok : std::uint8_t {
  End,
  Int,    ///< bits: the value; may be 2147483648, which the caller allows only after a minus
  Float,  ///< bits: the f32's
  Name,
  Infix,  ///< op; - and + may also be prefixes
  Not,
  BitNot,
  Open,
  Close,
  OpenIndex,
  CloseIndex,
  Comma,
  Question,
  Colon,
  Semicolon,
  Assign,
};

struct Token {
  Tok kind = Tok::End;
  Op op = Op::Literal;
  std::uint32_t bits = 0;
  std::uint32_t begin = 0, end = 0;  ///< within the text
};

class Lexer {
 public:
  explicit Lexer(std::shared_ptr<const Text> text) : text_(std::move(text)) {}

  /// The next token; an Error for a malformed number, or for a character or operator that the language does not have.
  Token next();
  std::string_view slice(const Token& t) const { return body().substr(t.begin, t.end - t.begin); }

 private:
  std::string_view body() const { return text_->body; }
  char at(std::size_t i) const { return i < body().size() ? body()[i] : '\0'; }
  Token take(Tok kind, std::size_t length, Op op = Op::Literal);
  Token number();
  std::uint32_t whole(std::string_view digits, int base) const;
  std::uint32_t real(std::string_view digits) const;
  [[noreturn]] void refuse_number(std::string_view written) const;
  [[noreturn]] void refuse_operator(std::string_view written, std::string_view fix) const;
  [[noreturn]] void refuse_character() const;

  std::shared_ptr<const Text> text_;
  std::size_t next_ = 0;
};

/// Throws an Error that points at [begin, end) of the text.
[[noreturn]] void refuse(const Text& text, std::string_view code, std::string problem, std::size_t begin,
                         std::size_t end, std::string why, std::string fix);

/// A piece of the user's text as a message quotes it: in backticks, cut when long.
std::string quoted(std::string_view piece);

}  // namespace attune::ir

// ir/lex.h — text to tokens
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ir/node.h"

namespace attune::ir {

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

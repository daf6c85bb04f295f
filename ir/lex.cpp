// ir/lex.cpp — text to tokens, and advice for characters and numbers that the language does not have
#include "ir/lex.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <limits>

#include "ir/named.h"
#include <attune/error.h>

namespace attune::ir {
namespace {

constexpr std::uint64_t beyond_int = std::uint64_t{1} << 31;

// True if a number that from_chars reports as out of range has overflowed and not underflowed.
bool is_huge(std::string_view digits) {
  const std::size_t e = std::min(digits.find_first_of("eE"), digits.size());
  const std::string_view mantissa = digits.substr(0, e);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  const std::size_t first = mantissa.find_first_of("123456789");
  if (first == std::string_view::npos) return false;
  long long exponent = 0;
  if (e < digits.size()) {
    std::string_view written = digits.substr(e + 1);
    const bool negative = written[0] == '-';
    if (negative || written[0] == '+') written.remove_prefix(1);
    const auto got = std::from_chars(written.data(), written.data() + written.size(), exponent);
    if (got.ec != std::errc{}) exponent = std::numeric_limits<int>::max();
    if (negative) exponent = -exponent;
  }
  return static_cast<long long>(point) - static_cast<long long>(first) + exponent > 0;
}

std::string_view replacement(char32_t c) {
  switch (c) {
    case U'≤': return "write <=";
    case U'≥': return "write >=";
    case U'≠': return "write !=";
    case U'×':
    case U'·':
    case U'∗': return "write *";
    case U'÷': return "write /";
    case U'−':
    case U'–':
    case U'—': return "write -, the one on the keyboard";
    case U'∧': return "write &&";
    case U'∨': return "write ||";
    case U'¬': return "write !";
    case U'∞': return "write inf";
    case U'π': return "write 3.1415927f";
    case U'√': return "write sqrt(x)";
    case U'²': return "write x * x";
    case U'Σ':
    case U'∑': return "write sum(i, n, body)";
    case U'\u00a0':
    case U'\u3000': return "write a plain space";
    case U'“':
    case U'”':
    case U'‘':
    case U'’':
    case U'"':
    case U'\'': return "leave the quotes out";
    case U'{':
    case U'}': return "write ( and )";
    case U'#': return "leave the comment out";
    case U'\\': return "leave it out; an expression may go over several lines";
    case U'.': return "write a number such as 1.0f, or a name without a dot";
    default: return c < 0x80 || c == 0xfffd ? "leave it out" : "in names use the letters a-z and A-Z, digits and _";
  }
}

}  // namespace

void refuse(const Text& text, std::string_view code, std::string problem, std::size_t begin, std::size_t end,
            std::string why, std::string fix) {
  throw Error(std::string(code), std::move(problem), Place{text.name, 0, text.body, begin, end}, std::move(why),
              std::move(fix));
}

std::string quoted(std::string_view piece) {
  constexpr std::size_t longest = 40;
  if (piece.size() <= longest) return "`" + std::string(piece) + "`";
  std::size_t cut = longest - 3;
  while (cut > 0 && (static_cast<unsigned char>(piece[cut]) & 0xc0u) == 0x80) --cut;
  return "`" + std::string(piece.substr(0, cut)) + "…`";
}

Token Lexer::take(Tok kind, std::size_t length, Op op) {
  Token t{kind, op, 0, static_cast<std::uint32_t>(next_), static_cast<std::uint32_t>(next_ + length)};
  next_ += length;
  return t;
}

Token Lexer::next() {
  while (at(next_) == ' ' || at(next_) == '\t' || at(next_) == '\n' || at(next_) == '\r') ++next_;
  if (next_ >= body().size()) return take(Tok::End, 0);
  const char c = at(next_), d = at(next_ + 1);
  if (is_letter(c)) {
    std::size_t end = next_ + 1;
    while (is_letter(at(end)) || is_digit(at(end))) ++end;
    return take(Tok::Name, end - next_);
  }
  if (is_digit(c) || (c == '.' && is_digit(d))) return number();
  switch (c) {
    case '(': return take(Tok::Open, 1);
    case ')': return take(Tok::Close, 1);
    case '[': return take(Tok::OpenIndex, 1);
    case ']': return take(Tok::CloseIndex, 1);
    case ',': return take(Tok::Comma, 1);
    case '?': return take(Tok::Question, 1);
    case ':': return take(Tok::Colon, 1);
    case ';': return take(Tok::Semicolon, 1);
    case '~': return take(Tok::BitNot, 1);
    case '+': return take(Tok::Infix, 1, Op::Add);
    case '-': return take(Tok::Infix, 1, Op::Sub);
    case '%': return take(Tok::Infix, 1, Op::Rem);
    case '^': return take(Tok::Infix, 1, Op::BitXor);
    case '*':
      if (d == '*') refuse_operator("**", "write pow(x, y), or x * x for a square");
      return take(Tok::Infix, 1, Op::Mul);
    case '/':
      if (d == '/') refuse_operator("//", "write floordiv(a, b), or a / b, which truncates");
      if (d == '*') refuse_operator("/*", "leave the comment out");
      return take(Tok::Infix, 1, Op::Div);
    case '|': return d == '|' ? take(Tok::Infix, 2, Op::Or) : take(Tok::Infix, 1, Op::BitOr);
    case '&': return d == '&' ? take(Tok::Infix, 2, Op::And) : take(Tok::Infix, 1, Op::BitAnd);
    case '!': return d == '=' ? take(Tok::Infix, 2, Op::Ne) : take(Tok::Not, 1);
    case '=':
      if (d == '<') refuse_operator("=<", "write <=");
      if (d == '>') refuse_operator("=>", "write >=");
      if (d == '=' && at(next_ + 2) == '=') refuse_operator("===", "write ==");
      return d == '=' ? take(Tok::Infix, 2, Op::Eq) : take(Tok::Assign, 1);
    case '<':
      if (d == '>') refuse_operator("<>", "write !=");
      if (d == '<') return take(Tok::Infix, 2, Op::Shl);
      return d == '=' ? take(Tok::Infix, 2, Op::Le) : take(Tok::Infix, 1, Op::Lt);
    case '>':
      if (d == '>') return take(Tok::Infix, 2, Op::Shr);
      return d == '=' ? take(Tok::Infix, 2, Op::Ge) : take(Tok::Infix, 1, Op::Gt);
    default: refuse_character();
  }
}

// A number extends over all letters, digits and points, so that an error message covers the whole malformed number.
Token Lexer::number() {
  std::size_t end = next_;
  while (is_letter(at(end)) || is_digit(at(end)) || at(end) == '.' || at(end) == '\'' ||
         ((at(end) == '+' || at(end) == '-') && (at(end - 1) == 'e' || at(end - 1) == 'E') && at(next_ + 1) != 'x'))
    ++end;
  const std::string_view written = body().substr(next_, end - next_);

  if (written.starts_with("0x") || written.starts_with("0X")) {
    const std::string_view digits = written.substr(2);
    if (digits.empty() || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      refuse_number(written);
    const std::uint32_t value = whole(digits, 16);
    Token t = take(Tok::Int, written.size());
    t.bits = value;
    return t;
  }
  std::size_t i = 0;
  const auto skip_digits = [&] {
    const std::size_t from = i;
    while (i < written.size() && is_digit(written[i])) ++i;
    return i - from;
  };
  skip_digits();
  if (i == written.size()) {
    if (written.size() > 1 && written[0] == '0') refuse_number(written);
    const std::uint32_t value = whole(written, 10);
    Token t = take(Tok::Int, written.size());
    t.bits = value;
    return t;
  }
  bool is_float = false;
  if (written[i] == '.') {
    is_float = true;
    ++i;
    skip_digits();
  }
  if (i < written.size() && (written[i] == 'e' || written[i] == 'E')) {
    is_float = true;
    ++i;
    if (i < written.size() && (written[i] == '+' || written[i] == '-')) ++i;
    if (skip_digits() == 0) refuse_number(written);
  }
  const std::string_view digits = written.substr(0, i);
  if (!is_float || (i < written.size() && written.substr(i) != "f")) refuse_number(written);
  const std::uint32_t bits = real(digits);
  Token t = take(Tok::Float, written.size());
  t.bits = bits;
  return t;
}

std::uint32_t Lexer::whole(std::string_view digits, int base) const {
  std::uint64_t value = 0;
  const auto got = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (got.ec == std::errc{} && value <= beyond_int) return static_cast<std::uint32_t>(value);
  const std::size_t end = static_cast<std::size_t>(digits.data() - body().data()) + digits.size();
  std::string fix = "write a Float: " + std::string(digits) + ".0f";
  if (base == 16)
    fix = value <= 0xffffffffu && got.ec == std::errc{}
              ? "write " + std::to_string(static_cast<std::int32_t>(value)) + ", which has the same bits"
              : "use at most 8 digits";
  refuse(*text_, "bad-number", quoted(body().substr(next_, end - next_)) + " does not fit an Int", next_, end,
         "an Int is between -2147483648 and 2147483647", fix);
}

std::uint32_t Lexer::real(std::string_view digits) const {
  float value = 0;
  const auto got = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (got.ec == std::errc::result_out_of_range) {
    if (is_huge(digits))
      refuse(*text_, "bad-number", quoted(digits) + " does not fit a Float", next_, next_ + digits.size(),
             "the largest Float is 3.4028235e+38", "write inf, or a smaller number");
    value = 0;
    // Below the smallest normal number, some libraries report a range error and others give the nearest subnormal.
    double wide = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), wide).ec == std::errc{})
      value = static_cast<float>(wide);
  }
  return std::bit_cast<std::uint32_t>(value);
}

void Lexer::refuse_number(std::string_view written) const {
  const std::size_t tail = std::min(written.find_first_not_of("0123456789.'"), written.size());
  std::string digits(written.substr(0, tail));
  std::string_view suffix = written.substr(tail);
  std::string why = "a number is written 2, 2.0f, 1e-4f or 0xff", fix = "write it as one of these";
  const bool whole_number = digits.find('.') == std::string::npos;
  if (digits.find('\'') != std::string::npos || (!suffix.empty() && suffix[0] == '_')) {
    std::string plain(written);
    std::erase(plain, '\'');
    std::erase(plain, '_');
    fix = "leave the separators out: " + plain;
  } else if (std::ranges::count(digits, '.') > 1) {
    fix = "a number has one decimal point";
  } else if (suffix.empty()) {
    const std::size_t first = std::min(digits.find_first_not_of('0'), digits.size() - 1);
    why = "a leading 0 means base 8 in C++, and base 10 elsewhere";
    fix = "write " + digits.substr(first);
  } else if (suffix == "f" || suffix == "F" || suffix == "l" || suffix == "L" || suffix == "d") {
    fix = "write " + digits + (whole_number ? ".0f" : "f") +
          (whole_number && suffix != "f" && suffix != "F" ? ", or " + digits + " for an Int" : "");
  } else if (suffix == "u" || suffix == "U" || suffix == "ul" || suffix == "ull" || suffix == "ll" || suffix == "LL") {
    why = "an Int is an i32; there are no unsigned or wider integers";
    fix = "write " + digits;
  } else if (digits == "0" && (suffix[0] == 'b' || suffix[0] == 'B' || suffix[0] == 'o')) {
    fix = "write it in base 10 or 16";
  } else if (digits == "0" && (suffix[0] == 'x' || suffix[0] == 'X')) {
    why = "0x is followed by digits 0-9 and a-f, without a point or an exponent";
    fix = "write it in base 10";
  } else if (suffix[0] == 'e' || suffix[0] == 'E') {
    why = "an exponent is e, an optional sign and digits, then an optional f";
    fix = "write it as in 1e-4f";
  } else if (is_letter(suffix[0])) {
    fix = "if this is a product, write " + digits + " * " + std::string(suffix);
  }
  refuse(*text_, "bad-number", quoted(written) + " is not a number", next_, next_ + written.size(), why, fix);
}

void Lexer::refuse_operator(std::string_view written, std::string_view fix) const {
  refuse(*text_, "unknown-operator", "there is no operator " + quoted(written), next_, next_ + written.size(), "",
         std::string(fix));
}

void Lexer::refuse_character() const {
  std::size_t begin = next_;
  const auto [value, bytes] = first_code_point(body().substr(begin));
  std::size_t end = begin + bytes;
  std::string_view before, after;
  if (value == '.') {
    while (begin > 0 && (is_letter(at(begin - 1)) || is_digit(at(begin - 1)))) --begin;
    while (is_letter(at(end)) || is_digit(at(end))) ++end;
    before = body().substr(begin, next_ - begin);
    after = body().substr(next_ + 1, end - next_ - 1);
  }
  std::string fix(replacement(value));
  if (!before.empty() && !after.empty()) {
    const bool known = op_named(after) || std::ranges::find(input_names, after) != input_names.end();
    const std::string_view advised = advice_on(after);
    fix = known ? "write " + std::string(after) : !advised.empty() ? std::string(advised) : fix;
    refuse(*text_, "bad-character",
           quoted(body().substr(begin, end - begin)) + " reads a member, and the language has no members", begin, end,
           "", fix);
  }
  std::string code = "U+";
  constexpr std::string_view hex = "0123456789ABCDEF";
  for (int digit = value > 0xffff ? 5 : 3; digit >= 0; --digit) code += hex[(value >> (4 * digit)) & 15];
  if (value == 0xfffd && bytes == 1) {
    const auto byte = static_cast<unsigned char>(at(begin));
    refuse(*text_, "bad-character",
           std::string("the text holds a byte that is not UTF-8: 0x") + hex[byte >> 4] + hex[byte & 15], begin, end, "",
           fix);
  }
  const bool visible = value > 0x20 && value != 0x7f;
  const std::string shown = visible ? quoted(body().substr(begin, bytes)) + " (" + code + ")" : code;
  refuse(*text_, "bad-character", "unexpected character " + shown, begin, end, "", fix);
}

}  // namespace attune::ir

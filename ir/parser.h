// ir/parser.h — the grammar and the types: recursive descent over tokens that makes nodes as it goes
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>
#include <unordered_set>

#include <attune/error.h>

#include "ir/lex.h"
#include "ir/named.h"
#include "ir/parse.h"
#include "ir/stack.h"

namespace attune::ir {

// A part of the text and its expression. Includes its brackets, so [begin, end) may be wider than expr->written.
struct Operand {
  Expr expr;
  std::uint32_t begin = 0, end = 0;
  std::uint32_t middle = 0;  ///< a comparison without brackets: where its right side begins
};

struct Pending {
  Operand left;
  Token op;
};

// The meaning of a name that the signature, a let or a sum defines.
struct Meaning {
  enum Kind : std::uint8_t { Value, Param, Capture, Variable } kind;
  std::uint32_t slot = 0;
  Expr value = nullptr;
};

// A type with its article.
inline std::string a(Type type) { return (type == Type::I32 ? "an " : "a ") + std::string(name_of(type)); }

// Bytes of the thread's stack that a level of nesting leaves free: for the frames between two levels, and for a
// message.
inline constexpr std::size_t stack_kept = std::size_t{24} << 10;

// Body = { "let" name "=" Ternary ";" } Ternary
// Ternary = Infix [ "?" Ternary ":" Ternary ];  Infix = Prefix { op Prefix };  Prefix = { "-" "+" "!" "~" } Primary
// Primary = number | name | name "(" Ternary, … ")" | name "[" Ternary, … "]" | "sum" "(" name "," n "," Body ")"
//         | named mod "(" capture or Ternary, … ")"
//         | "(" Ternary ")"
// Operator chains use loops over explicit stacks; the machine's stack holds only nesting, which is bounded by
// max_nesting and by the stack of the thread. Separate functions make the messages, which keeps the frames of the
// recursive ones small.
class Parser {
 public:
  Parser(std::string_view text, const Scope& scope)
      : scope_(scope), text_(std::make_shared<const Text>(Text{scope.name, std::string(text)})), lexer_(text_) {
    for (const auto& [name, value] : scope.lets) names_.try_emplace(name, Meaning{Meaning::Value, 0, value});
    if (scope.signature) {
      const auto& captures = scope.signature->captures;
      const auto& params = scope.signature->params;
      for (std::uint32_t i = 0; i < captures.size(); ++i)
        names_.try_emplace(captures[i].name, Meaning{Meaning::Capture, i});
      for (std::uint32_t i = 0; i < params.size(); ++i) names_.try_emplace(params[i].name, Meaning{Meaning::Param, i});
    }
  }

  Expr whole();

 private:
  // ---- tokens

  void advance();
  std::string_view slice(std::size_t begin, std::size_t end) const {
    return std::string_view(text_->body).substr(begin, end - begin);
  }
  std::string_view slice(const Operand& o) const { return slice(o.begin, o.end); }
  bool is_word(std::string_view word) const { return token_.kind == Tok::Name && lexer_.slice(token_) == word; }
  Written written(std::uint32_t begin, std::uint32_t end) const {
    return as_ ? as_ : Written{nullptr, 0, begin, end, text_};
  }

  // Counts one level of nesting while it lives.
  class Nest {
   public:
    explicit Nest(Parser& parser) : nesting_(parser.nesting_) {
      if (++nesting_ > max_nesting) parser.refuse_depth();
      if (stack_left() < stack_kept) parser.refuse_stack();
    }
    ~Nest() { --nesting_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    int& nesting_;
  };

  // ---- grammar

  Operand body();
  void let();
  Operand ternary();
  Operand infix();
  Operand combine(Operand right);
  bool chains(const Operand& a, const Operand& b) const;
  // The input that an expression changes, s or p; null if neither.
  static Expr changed_by(const Node& n) {
    if (n.uses & bit(Input::S)) return input(Input::S);
    return n.uses & bit(Input::P) ? input(Input::P) : nullptr;
  }
  Operand chained(std::size_t first, std::uint32_t begin, std::uint32_t end);
  Operand prefix();
  bool is_number() const;
  Operand number(const Token* minus);
  Operand primary();
  Operand name();
  Operand builtin(const Token& t);
  Operand read(const Token& t, std::uint32_t slot);
  Operand call(const Token& t);
  Operand named(const Token& t);

  struct NamedValue {
    std::optional<std::uint32_t> capture{};
    Operand number{};
  };
  NamedValue named_value();
  bool fits(const NamedMod& mod, const std::vector<NamedValue>& given) const;
  Operand expanded(const NamedMod& mod, std::vector<NamedValue>& given, const Token& t);
  std::size_t list(Tok close);
  Operand sum(const Token& t);
  void sum_comma(const Token& t, const Token& open, std::size_t given);
  std::uint32_t sum_count(const Operand& count) const;

  // ---- names that the text defines

  void check_new(const Token& name, std::string_view what) const;
  void declare(const Token& name, Meaning meaning);
  void forget(std::size_t outer);

  // ---- types

  Operand node(Expr made, std::uint32_t begin, std::uint32_t end);
  void widen(Operand& o);
  Operand apply(Op o, std::size_t first, std::uint32_t begin, std::uint32_t end);
  Expr expected(Operand made);

  // ---- mistakes

  [[noreturn]] void fail(std::string_view code, std::string problem, std::size_t begin, std::size_t end,
                         std::string why, std::string fix) const {
    refuse(*text_, code, std::move(problem), begin, end, std::move(why), std::move(fix));
  }
  [[noreturn]] void fail(std::string_view code, std::string problem, const Token& at, std::string why,
                         std::string fix) const {
    fail(code, std::move(problem), at.begin, at.end, std::move(why), std::move(fix));
  }
  [[noreturn]] void fail(std::string_view code, std::string problem, const Operand& at, std::string why,
                         std::string fix) const {
    fail(code, std::move(problem), at.begin, at.end, std::move(why), std::move(fix));
  }
  std::string quote(const Token& t) const { return quoted(lexer_.slice(t)); }
  std::string quote(const Operand& o) const { return quoted(slice(o)); }
  // The user's text of an operand, in brackets if an operator with precedence `bind` needs them.
  std::string words(const Operand& o, int bind) const;

  [[noreturn]] void refuse_empty() const;
  [[noreturn]] void refuse_depth() const;
  [[noreturn]] void refuse_stack() const;
  [[noreturn]] void refuse_size() const;
  [[noreturn]] void refuse_name(std::string_view what) const;
  [[noreturn]] void refuse_new(const Token& name, std::string_view what) const;
  [[noreturn]] void refuse_let(const Token& name) const;
  [[noreturn]] void refuse_let_end(const Token& name) const;
  [[noreturn]] void refuse_missing() const;
  [[noreturn]] void refuse_rest(const Token* open) const;
  [[noreturn]] void refuse_word() const;
  [[noreturn]] void refuse_inner_let(const Token& t) const;
  [[noreturn]] void refuse_int(const Token& t) const;
  [[noreturn]] void refuse_sign(const Token& sign, const Operand& operand) const;
  [[noreturn]] void refuse_unindexed(const Token& t, std::uint32_t slot) const;
  [[noreturn]] void refuse_value(const Token& t, const Meaning& meaning) const;
  bool is_no_operand(const Token& t) const;
  [[noreturn]] void refuse_unknown(const Token& t) const;
  [[noreturn]] void refuse_function(const Token& t) const;
  [[noreturn]] void refuse_input(const Token& t) const;
  [[noreturn]] void refuse_let(const Token& t, const Node& value) const;
  [[noreturn]] void refuse_named(const Token& t) const;
  [[noreturn]] void refuse_share(const std::string& name, const Operand& number) const;
  [[noreturn]] void refuse_rank(const Token& t, const Signature::Capture& capture, std::size_t given) const;
  [[noreturn]] void refuse_index(const Operand& index) const;
  [[noreturn]] void refuse_count(const Token& t, std::size_t wanted, std::size_t given) const;
  [[noreturn]] void refuse_sum_count(const Operand& count) const;
  [[noreturn]] void refuse_sum_of_bools(const Operand& inside) const;
  [[noreturn]] void refuse_sums(const Token& t) const;
  [[noreturn]] void refuse_type(Op o, std::span<const Operand> args, std::size_t wrong) const;
  [[noreturn]] void refuse_bool(Op o, std::span<const Operand> args, std::size_t wrong, const Operand& truth) const;
  [[noreturn]] void refuse_result(const Operand& made) const;
  std::vector<std::string> known_values() const;
  std::string sample_index(int rank) const;

  const Scope& scope_;
  Written as_{};  // the place of all nodes, if this text replaces another one
  std::shared_ptr<const Text> text_;
  Lexer lexer_;
  Token token_;
  Token last_;  // the previous token
  std::unordered_map<std::string_view, Meaning> names_;
  std::vector<std::string_view> locals_;       // lets and variables in scope, innermost last
  std::unordered_set<std::string_view> gone_;  // names that went out of scope
  std::string_view defining_;                  // the let whose value is being parsed
  std::vector<Operand> arguments_;
  std::vector<Pending> pending_;
  int nesting_ = 0;
  std::size_t made_ = 0;
};

}  // namespace attune::ir

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
#include "ir/names.h"
#include "ir/parse.h"

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

inline bool compares(Op o) { return o >= Op::Eq && o <= Op::Ge; }

// Body = { "let" name "=" Ternary ";" } Ternary
// Ternary = Infix [ "?" Ternary ":" Ternary ];  Infix = Prefix { op Prefix };  Prefix = { "-" "+" "!" "~" } Primary
// Primary = number | name | name "(" Ternary, … ")" | name "[" Ternary, … "]" | "sum" "(" name "," n "," Body ")"
//         | named mod "(" capture or Ternary, … ")"
//         | "(" Ternary ")"
// Operator chains use loops over explicit stacks; the machine's stack holds only nesting, which is bounded. Separate
// functions make the messages, which keeps the frames of the recursive ones small.
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

  Expr whole() {
    advance();
    if (token_.kind == Tok::End) refuse_empty();
    Operand made = body();
    if (token_.kind != Tok::End) refuse_rest(nullptr);
    return expected(std::move(made));
  }

 private:
  // ---- tokens

  void advance() {
    last_ = token_;
    token_ = lexer_.next();
  }
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
    }
    ~Nest() { --nesting_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    int& nesting_;
  };

  // ---- grammar

  Operand body() {
    while (is_word("let")) let();
    return ternary();
  }

  void let() {
    advance();
    const Token name = token_;
    if (name.kind != Tok::Name) refuse_name("let");
    check_new(name, "let");
    advance();
    if (token_.kind != Tok::Assign) refuse_let(name);
    advance();
    defining_ = lexer_.slice(name);
    Operand value = ternary();
    defining_ = {};
    if (token_.kind != Tok::Semicolon) refuse_let_end(name);
    advance();
    declare(name, {Meaning::Value, 0, std::move(value.expr)});
  }

  Operand ternary() {
    Operand condition = infix();
    if (token_.kind != Tok::Question) return condition;
    const Token question = token_;
    const Nest nest(*this);
    const std::size_t first = arguments_.size();
    arguments_.push_back(std::move(condition));
    advance();
    arguments_.push_back(ternary());
    if (token_.kind != Tok::Colon) refuse_rest(&question);
    advance();
    arguments_.push_back(ternary());
    return apply(Op::Where, first, arguments_[first].begin, last_.end);
  }

  Operand infix() {
    const std::size_t floor = pending_.size();
    Operand right = prefix();
    while (token_.kind == Tok::Infix) {
      const int bind = row(token_.op).bind;
      while (pending_.size() > floor && row(pending_.back().op.op).bind >= bind) right = combine(std::move(right));
      pending_.push_back({std::move(right), token_});
      advance();
      right = prefix();
    }
    while (pending_.size() > floor) right = combine(std::move(right));
    return right;
  }

  Operand combine(Operand right) {
    const Token op = pending_.back().op;
    const std::size_t first = arguments_.size();
    const std::uint32_t begin = pending_.back().left.begin, middle = right.begin, end = right.end;
    arguments_.push_back(std::move(pending_.back().left));
    arguments_.push_back(std::move(right));
    pending_.pop_back();
    if (op.op == Op::BitOr && chains(arguments_[first], arguments_[first + 1])) return chained(first, begin, end);
    Operand made = apply(op.op, first, begin, end);
    if (compares(op.op)) made.middle = middle;
    return made;
  }

  // a | b between what becomes of a score: a, then b. An Int may become a Float, but bits of two Ints are joined.
  bool chains(const Operand& a, const Operand& b) const {
    return b.expr->type == Type::F32 && a.expr->type != Type::Bool && changed_by(*b.expr);
  }
  // What an expression changes, s or p; none of them: null.
  static Expr changed_by(const Node& n) {
    if (n.uses & bit(Input::S)) return input(Input::S);
    return n.uses & bit(Input::P) ? input(Input::P) : nullptr;
  }
  Operand chained(std::size_t first, std::uint32_t begin, std::uint32_t end) {
    widen(arguments_[first]);
    const Expr then = std::move(arguments_[first + 1].expr), of = changed_by(*then);
    const DigestMap<Expr> by{{of->digest, std::move(arguments_[first].expr)}};
    arguments_.resize(first);
    return node(substitute(then, by), begin, end);
  }

  Operand prefix() {
    const Token sign = token_;
    Op op = Op::Literal;
    if (sign.kind == Tok::Not) op = Op::Not;
    if (sign.kind == Tok::BitNot) op = Op::BitNot;
    if (sign.kind == Tok::Infix && sign.op == Op::Sub) op = Op::Neg;
    const bool plus = sign.kind == Tok::Infix && sign.op == Op::Add;
    if (op == Op::Literal && !plus) return primary();
    const Nest nest(*this);
    advance();
    if (op == Op::Neg && is_number()) return number(&sign);
    Operand operand = prefix();
    if (plus) {
      if (operand.expr->type == Type::Bool) refuse_sign(sign, operand);
      return {std::move(operand.expr), sign.begin, operand.end};
    }
    const std::size_t first = arguments_.size();
    arguments_.push_back(std::move(operand));
    return apply(op, first, sign.begin, last_.end);
  }

  bool is_number() const {
    return token_.kind == Tok::Int || token_.kind == Tok::Float || is_word("inf") || is_word("nan");
  }

  // A literal, including the `minus` before it if there is one.
  Operand number(const Token* minus) {
    const Token t = token_;
    const std::uint32_t begin = minus ? minus->begin : t.begin;
    advance();
    if (t.kind == Tok::Int) {
      if (t.bits > 0x7fffffffu && !minus) refuse_int(t);
      const std::uint32_t bits = minus ? 0u - t.bits : t.bits;
      return node(integer(static_cast<std::int32_t>(bits), written(begin, t.end)), begin, t.end);
    }
    float value = std::bit_cast<float>(t.bits);
    if (t.kind == Tok::Name) value = std::bit_cast<float>(lexer_.slice(t) == "inf" ? 0x7f800000u : 0x7fc00000u);
    return node(real(minus ? -value : value, written(begin, t.end)), begin, t.end);
  }

  Operand primary() {
    if (is_number()) return number(nullptr);
    if (token_.kind == Tok::Name) return name();
    if (token_.kind != Tok::Open) refuse_missing();
    const Token open = token_;
    const Nest nest(*this);
    advance();
    Operand inside = ternary();
    if (token_.kind != Tok::Close) refuse_rest(&open);
    advance();
    return {std::move(inside.expr), open.begin, last_.end};
  }

  Operand name() {
    const Token t = token_;
    const std::string_view word = lexer_.slice(t);
    advance();
    const bool called = token_.kind == Tok::Open, indexed = token_.kind == Tok::OpenIndex;
    const auto found = names_.find(word);
    if (found == names_.end()) return called ? call(t) : builtin(t);
    const Meaning& meaning = found->second;
    if (meaning.kind == Meaning::Capture) {
      if (!indexed) refuse_unindexed(t, meaning.slot);
      return read(t, meaning.slot);
    }
    if (called || indexed) refuse_value(t, meaning);
    if (meaning.kind == Meaning::Value && (meaning.value->uses & ~scope_.inputs)) refuse_let(t, *meaning.value);
    if (meaning.kind != Meaning::Param) return {meaning.value, t.begin, t.end};
    return node(param(meaning.slot, scope_.signature->params[meaning.slot].type, written(t.begin, t.end)), t.begin,
                t.end);
  }

  // A variable or constant of the language.
  Operand builtin(const Token& t) {
    const std::string_view word = lexer_.slice(t);
    if (word == "true" || word == "false")
      return node(boolean(word == "true", written(t.begin, t.end)), t.begin, t.end);
    const auto found = std::ranges::find(input_names, word);
    if (found == input_names.end()) refuse_unknown(t);
    const auto which = static_cast<Input>(found - input_names.begin());
    if (!(scope_.inputs & bit(which))) refuse_input(t);
    if (token_.kind == Tok::OpenIndex) refuse_value(t, {Meaning::Value});
    return node(input(which, written(t.begin, t.end)), t.begin, t.end);
  }

  Operand read(const Token& t, std::uint32_t slot) {
    const Signature::Capture& capture = scope_.signature->captures[slot];
    const std::size_t first = list(Tok::CloseIndex), given = arguments_.size() - first;
    if (given != static_cast<std::size_t>(capture.rank) || given > max_rank) refuse_rank(t, capture, given);
    std::array<Expr, max_rank> indices;
    for (std::size_t i = 0; i < given; ++i) {
      if (arguments_[first + i].expr->type != Type::I32) refuse_index(arguments_[first + i]);
      indices[i] = std::move(arguments_[first + i].expr);
    }
    arguments_.resize(first);
    return node(ir::read(slot, capture.type, {indices.data(), given}, written(t.begin, last_.end)), t.begin, last_.end);
  }

  Operand call(const Token& t) {
    const std::string_view word = lexer_.slice(t);
    if (word == "sum") return sum(t);
    const auto op = op_named(word);
    if (!op && is_named_mod(word)) return named(t);
    if (!op) refuse_function(t);
    const std::size_t first = list(Tok::Close), given = arguments_.size() - first;
    if (given != static_cast<std::size_t>(row(*op).args))
      refuse_count(t, static_cast<std::size_t>(row(*op).args), given);
    return apply(*op, first, t.begin, last_.end);
  }

  // A named mod: its text, with the arguments in place of its names.
  Operand named(const Token& t) {
    const Token open = token_;
    const Nest nest(*this);
    std::vector<NamedValue> given;
    advance();
    while (token_.kind != Tok::Close || !given.empty()) {
      given.push_back(named_value());
      if (token_.kind != Tok::Comma) break;
      advance();
    }
    if (token_.kind != Tok::Close) refuse_rest(&open);
    advance();
    for (const NamedMod& mod : named_mods())
      if (mod.name == lexer_.slice(t) && fits(mod, given)) return expanded(mod, given, t);
    refuse_named(t);
  }

  struct NamedValue {
    std::optional<std::uint32_t> capture{};
    Operand number{};
  };
  NamedValue named_value() {
    const auto found = token_.kind == Tok::Name ? names_.find(lexer_.slice(token_)) : names_.end();
    if (found == names_.end() || found->second.kind != Meaning::Capture) return {.number = ternary()};
    // A tensor stands alone; with an index it begins a number.
    const Lexer lexer = lexer_;
    const Token token = token_, last = last_;
    advance();
    if (token_.kind == Tok::Comma || token_.kind == Tok::Close) return {.capture = found->second.slot};
    lexer_ = lexer;
    token_ = token;
    last_ = last;
    return {.number = ternary()};
  }

  bool fits(const NamedMod& mod, const std::vector<NamedValue>& given) const {
    if (mod.count() != given.size()) return false;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const NamedArgument& wanted = mod.takes[i];
      if (given[i].capture.has_value() != (wanted.rank >= 0)) return false;
      if (given[i].capture) {
        const Signature::Capture& capture = scope_.signature->captures[*given[i].capture];
        if (capture.type != wanted.type || capture.rank != wanted.rank) return false;
      } else {
        const Type type = given[i].number.expr->type;
        if (type != wanted.type && !(type == Type::I32 && wanted.type == Type::F32)) return false;
      }
    }
    return true;
  }

  Operand expanded(const NamedMod& mod, std::vector<NamedValue>& given, const Token& t) {
    Signature signature;
    if (scope_.signature) signature = *scope_.signature;
    for (Signature::Capture& capture : signature.captures) capture.name.clear();
    signature.params.clear();
    Scope scope{.name = scope_.name, .signature = &signature};
    for (std::size_t i = 0; i < given.size(); ++i) {
      const std::string name(mod.takes[i].name);
      if (given[i].capture) {
        signature.captures[*given[i].capture].name = name;
        continue;
      }
      if (mod.takes[i].type == Type::F32) widen(given[i].number);
      scope.lets.emplace(name, given[i].number.expr);
    }
    Parser parser(mod.text, scope);
    parser.as_ = written(t.begin, last_.end);
    Expr made = parser.whole();
    made_ += parser.made_;
    if (made->uses & ~scope_.inputs) refuse_let(t, *made);
    return node(std::move(made), t.begin, last_.end);
  }

  // Pushes the list between brackets onto arguments_; returns the index of its first element.
  std::size_t list(Tok close) {
    const Token open = token_;
    const Nest nest(*this);
    const std::size_t first = arguments_.size();
    advance();
    while (token_.kind != close || arguments_.size() > first) {
      arguments_.push_back(ternary());
      if (token_.kind != Tok::Comma) break;
      advance();
    }
    if (token_.kind != close) refuse_rest(&open);
    advance();
    return first;
  }

  Operand sum(const Token& t) {
    const Token open = token_;
    const Nest nest(*this);
    advance();
    const Token name = token_;
    if (name.kind != Tok::Name) refuse_name("sum");
    check_new(name, "sum");
    advance();
    sum_comma(t, open, 1);
    const Operand count = ternary();
    const std::uint32_t n = sum_count(count);
    sum_comma(t, open, 2);
    const std::size_t outer = locals_.size();
    const Expr variable = fresh_bound(written(name.begin, name.end));
    declare(name, {Meaning::Variable, 0, variable});
    const Operand inside = body();
    if (token_.kind == Tok::Comma) refuse_count(t, 3, 4);
    if (token_.kind != Tok::Close) refuse_rest(&open);
    advance();
    forget(outer);
    if (inside.expr->type == Type::Bool) refuse_sum_of_bools(inside);
    if (inside.expr->binder >= max_binders) refuse_sums(t);
    return node(ir::sum(variable, n, inside.expr, written(t.begin, last_.end)), t.begin, last_.end);
  }

  void sum_comma(const Token& t, const Token& open, std::size_t given) {
    if (token_.kind == Tok::Close) refuse_count(t, 3, given);
    if (token_.kind != Tok::Comma) refuse_rest(&open);
    advance();
  }

  std::uint32_t sum_count(const Operand& count) const {
    const Node& n = *count.expr;
    if (n.op != Op::Literal || n.type != Type::I32 || n.bits > max_sum_count) refuse_sum_count(count);
    return n.bits;
  }

  // ---- names that the text defines

  void check_new(const Token& name, std::string_view what) const {
    const std::string_view word = lexer_.slice(name);
    if (!is_reserved(word) && !names_.contains(word) && word != defining_) return;
    refuse_new(name, what);
  }

  void declare(const Token& name, Meaning meaning) {
    names_.emplace(lexer_.slice(name), std::move(meaning));
    locals_.push_back(lexer_.slice(name));
  }

  void forget(std::size_t outer) {
    for (std::size_t i = outer; i < locals_.size(); ++i) {
      names_.erase(locals_[i]);
      gone_.insert(locals_[i]);
    }
    locals_.resize(outer);
  }

  // ---- types

  Operand node(Expr made, std::uint32_t begin, std::uint32_t end) {
    if (++made_ > max_nodes) refuse_size();
    return {std::move(made), begin, end};
  }

  // Converts an Int to Float, next to a Float or where a Float is required.
  void widen(Operand& o) {
    if (o.expr->type != Type::I32) return;
    const bool literal = o.expr->op == Op::Literal;
    Written where = written(o.begin, o.end);
    o = node(literal ? real(static_cast<float>(literal_value(*o.expr)), std::move(where))
                     : op(Op::F32, o.expr, std::move(where)),
             o.begin, o.end);
  }

  // The operation on arguments_ from `first` on; pops them.
  Operand apply(Op o, std::size_t first, std::uint32_t begin, std::uint32_t end) {
    const OpRow& r = row(o);
    const std::span<Operand> args(&arguments_[first], arguments_.size() - first);
    const std::size_t alike = o == Op::Where ? 1 : 0;  // arguments from here on share one type
    bool wide = r.takes == Takes::Float;
    for (std::size_t i = alike; i < args.size(); ++i) wide |= args[i].expr->type == Type::F32;
    for (std::size_t i = alike; i < args.size() && wide && takes(r.takes, Type::F32); ++i) widen(args[i]);
    std::array<Expr, max_args> exprs;
    for (std::size_t i = 0; i < args.size(); ++i) {
      const Type type = args[i].expr->type;
      const bool right = i < alike ? type == Type::Bool : takes(r.takes, type) && type == args[alike].expr->type;
      if (!right) refuse_type(o, args, i);
      exprs[i] = args[i].expr;
    }
    Type type = exprs[args.size() - 1]->type;
    if (r.gives == Gives::Bool) type = Type::Bool;
    if (r.gives == Gives::I32) type = Type::I32;
    if (r.gives == Gives::F32) type = Type::F32;
    Operand made = node(make(o, type, 0, {exprs.data(), args.size()}, written(begin, end)), begin, end);
    arguments_.resize(first);
    return made;
  }

  Expr expected(Operand made) {
    if (scope_.expected == Type::F32) widen(made);
    if (scope_.expected && made.expr->type != *scope_.expected) refuse_result(made);
    return std::move(made.expr);
  }

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
  std::string words(const Operand& o, int bind) const {
    const Written& w = o.expr->written;
    const bool in_brackets = w.text == text_ && w.begin > o.begin && w.end < o.end;
    std::string out(in_brackets ? slice(w.begin, w.end) : slice(o));
    if (out.size() > 40) return "(…)";
    const int inner = row(o.expr->op).bind;
    const bool bare = inner == 0 || inner > bind || is_name(out);
    return bare ? out : "(" + out + ")";
  }

  [[noreturn]] void refuse_empty() const;
  [[noreturn]] void refuse_depth() const;
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
  [[noreturn]] void refuse_unknown(const Token& t) const;
  [[noreturn]] void refuse_function(const Token& t) const;
  [[noreturn]] void refuse_input(const Token& t) const;
  [[noreturn]] void refuse_let(const Token& t, const Node& value) const;
  [[noreturn]] void refuse_named(const Token& t) const;
  [[noreturn]] void refuse_rank(const Token& t, const Signature::Capture& capture, std::size_t given) const;
  [[noreturn]] void refuse_index(const Operand& index) const;
  [[noreturn]] void refuse_count(const Token& t, std::size_t wanted, std::size_t given) const;
  [[noreturn]] void refuse_sum_count(const Operand& count) const;
  [[noreturn]] void refuse_sum_of_bools(const Operand& inside) const;
  [[noreturn]] void refuse_sums(const Token& t) const;
  [[noreturn]] void refuse_type(Op o, std::span<const Operand> args, std::size_t wrong) const;
  [[noreturn]] void refuse_result(const Operand& made) const;
  std::vector<std::string> known_values() const;
  std::string sample_index(int rank) const;

  const Scope& scope_;
  Written as_{};  // the place of all nodes, where this text stands for another
  std::shared_ptr<const Text> text_;
  Lexer lexer_;
  Token token_;
  Token last_;  // the token before
  std::unordered_map<std::string_view, Meaning> names_;
  std::vector<std::string_view> locals_;       // lets and variables in scope, innermost last
  std::unordered_set<std::string_view> gone_;  // those that went out of scope
  std::string_view defining_;                  // the let whose value is being parsed
  std::vector<Operand> arguments_;
  std::vector<Pending> pending_;
  int nesting_ = 0;
  std::size_t made_ = 0;
};

}  // namespace attune::ir

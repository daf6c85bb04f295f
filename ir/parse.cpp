// ir/parse.cpp — text to Expr; a named mod in it is replaced by its text
#include "ir/parser.h"

namespace attune::ir {

Expr Parser::whole() {
  advance();
  if (token_.kind == Tok::End) refuse_empty();
  Operand made = body();
  if (token_.kind != Tok::End) refuse_rest(nullptr);
  return expected(std::move(made));
}

void Parser::advance() {
  last_ = token_;
  token_ = lexer_.next();
}

Operand Parser::body() {
  while (is_word("let")) let();
  return ternary();
}

void Parser::let() {
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

Operand Parser::ternary() {
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

Operand Parser::infix() {
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

Operand Parser::combine(Operand right) {
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

// True if a | b means a, then b, as for scores. An Int may become a Float, but | of two Ints is the bitwise or.
bool Parser::chains(const Operand& a, const Operand& b) const {
  return b.expr->type == Type::F32 && a.expr->type != Type::Bool && changed_by(*b.expr);
}

Operand Parser::chained(std::size_t first, std::uint32_t begin, std::uint32_t end) {
  widen(arguments_[first]);
  const Expr then = std::move(arguments_[first + 1].expr), of = changed_by(*then);
  const DigestMap<Expr> by{{of->digest, std::move(arguments_[first].expr)}};
  arguments_.resize(first);
  return node(substitute(then, by), begin, end);
}

Operand Parser::prefix() {
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

bool Parser::is_number() const {
  return token_.kind == Tok::Int || token_.kind == Tok::Float || is_word("inf") || is_word("nan");
}

// A literal, including the `minus` before it if there is one.
Operand Parser::number(const Token* minus) {
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

Operand Parser::primary() {
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

Operand Parser::name() {
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
Operand Parser::builtin(const Token& t) {
  const std::string_view word = lexer_.slice(t);
  if (word == "true" || word == "false") return node(boolean(word == "true", written(t.begin, t.end)), t.begin, t.end);
  const auto found = std::ranges::find(input_names, word);
  if (found == input_names.end()) refuse_unknown(t);
  const auto which = static_cast<Input>(found - input_names.begin());
  if (!(scope_.inputs & bit(which))) refuse_input(t);
  if (token_.kind == Tok::OpenIndex) refuse_value(t, {Meaning::Value});
  return node(input(which, written(t.begin, t.end)), t.begin, t.end);
}

Operand Parser::read(const Token& t, std::uint32_t slot) {
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

Operand Parser::call(const Token& t) {
  const std::string_view word = lexer_.slice(t);
  if (word == "sum") return sum(t);
  const auto op = op_named(word);
  if (!op && is_named_mod(word)) return named(t);
  if (!op) refuse_function(t);
  const std::size_t first = list(Tok::Close), given = arguments_.size() - first;
  if (given != static_cast<std::size_t>(row(*op).args)) refuse_count(t, static_cast<std::size_t>(row(*op).args), given);
  return apply(*op, first, t.begin, last_.end);
}

// Pushes the list between brackets onto arguments_; returns the index of its first element.
std::size_t Parser::list(Tok close) {
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

Operand Parser::sum(const Token& t) {
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

void Parser::sum_comma(const Token& t, const Token& open, std::size_t given) {
  if (token_.kind == Tok::Close) refuse_count(t, 3, given);
  if (token_.kind != Tok::Comma) refuse_rest(&open);
  advance();
}

std::uint32_t Parser::sum_count(const Operand& count) const {
  const Node& n = *count.expr;
  if (n.op != Op::Literal || n.type != Type::I32 || n.bits > max_sum_count) refuse_sum_count(count);
  return n.bits;
}

void Parser::check_new(const Token& name, std::string_view what) const {
  const std::string_view word = lexer_.slice(name);
  if (!is_reserved(word) && !names_.contains(word) && word != defining_) return;
  refuse_new(name, what);
}

void Parser::declare(const Token& name, Meaning meaning) {
  names_.emplace(lexer_.slice(name), std::move(meaning));
  locals_.push_back(lexer_.slice(name));
}

void Parser::forget(std::size_t outer) {
  for (std::size_t i = outer; i < locals_.size(); ++i) {
    names_.erase(locals_[i]);
    gone_.insert(locals_[i]);
  }
  locals_.resize(outer);
}

Expr parse(std::string_view text, const Scope& scope) {
  if (text.size() > max_text)
    throw Error("too-large", "the text is too long", {scope.name},
                "it has " + std::to_string(text.size()) + " bytes, and " + std::to_string(max_text) + " are allowed",
                "pass tables as captures, and write repetitions as sum(i, n, body)");
  return Parser(text, scope).whole();
}

// A named mod: its text, with the arguments substituted for its names.
Operand Parser::named(const Token& t) {
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

Parser::NamedValue Parser::named_value() {
  const auto found = token_.kind == Tok::Name ? names_.find(lexer_.slice(token_)) : names_.end();
  if (found == names_.end() || found->second.kind != Meaning::Capture) return {.number = ternary()};
  // A name without an index passes the captured tensor itself; with an index it reads a number.
  const Lexer lexer = lexer_;
  const Token token = token_, last = last_;
  advance();
  if (token_.kind == Tok::Comma || token_.kind == Tok::Close) return {.capture = found->second.slot};
  lexer_ = lexer;
  token_ = token;
  last_ = last;
  return {.number = ternary()};
}

bool Parser::fits(const NamedMod& mod, const std::vector<NamedValue>& given) const {
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

Operand Parser::expanded(const NamedMod& mod, std::vector<NamedValue>& given, const Token& t) {
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
    if (mod.takes[i].is_share && is_no_share(given[i].number.expr)) refuse_share(name, given[i].number);
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

}  // namespace attune::ir

// ir/parse_named.cpp — a named mod in a text: its arguments, and the text that replaces it
#include "ir/parser.h"

namespace attune::ir {

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
  // A captured tensor has no index; with an index it begins a number.
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

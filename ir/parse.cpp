// ir/parse.cpp — text to Expr
#include "ir/parser.h"

namespace attune::ir {

Expr parse(std::string_view text, const Scope& scope) {
  if (text.size() > max_text)
    throw Error("too-large", "the text is too long", {scope.name},
                "it has " + std::to_string(text.size()) + " bytes, and " + std::to_string(max_text) + " are allowed",
                "pass tables as captures, and write repetitions as sum(i, n, body)");
  return Parser(text, scope).whole();
}

}  // namespace attune::ir

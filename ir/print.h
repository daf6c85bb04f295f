// ir/print.h — Expr to text in C++ expression syntax, the inverse of parse
#pragma once

#include <string>

#include "ir/verify.h"

namespace attune::ir {

/// The text, and where in it each node first stands (half open).
struct Printed {
  struct Span {
    std::size_t begin, end;
  };
  std::string text;
  DigestMap<Span> spans;
};

/// `parse(print(e)) == e`. A large shared sub-expression, or one nested too deep for the parser, is named first:
/// `let x1 = s * s; x1 + x1`.
Printed print_spans(const Expr& root, const Signature& signature);
std::string print(const Expr& root, const Signature& signature = {});

/// A literal as the language writes it: 3, 0.5f, -inf, true.
std::string print_literal(Type type, double value);

}  // namespace attune::ir

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

/// What fields are called, by level and index.
using FieldNames = std::array<std::vector<std::string>, 3>;

/// The text as device code of codegen/cuda/ops.cuh: `lets` are statements, a line each, that `value` follows. A read is
/// a call, a sum takes a lambda, random names its coordinates, and a field is a member of head, row or col.
struct DevicePrinted {
  std::string lets, value;
  std::vector<Expr> statements;  ///< what the lets name, in order, and then what the value is of
};
DevicePrinted print_for_device(const Expr& root, const Signature& signature, const FieldNames& fields);

/// A literal as the language writes it: 3, 0.5f, -inf, true.
std::string print_literal(Type type, double value);

}  // namespace attune::ir

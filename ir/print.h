// ir/print.h — Expr to text in C++ expression syntax, the inverse of parse
#pragma once

#include <string>

#include "ir/node.h"

namespace attune::ir {

/// The text, and where each node first appears in it (half open).
struct Printed {
  struct Span {
    std::size_t begin, end;
  };
  std::string text;
  DigestMap<Span> spans;
};

/// `parse(print(e)) == e`. A large shared sub-expression, or one nested too deep for the parser, gets a name first:
/// `let x1 = s * s; x1 + x1`.
Printed print_spans(const Expr& root, const Signature& signature);
std::string print(const Expr& root, const Signature& signature = {});

/// The same, but each repeated part of at least 8 nodes gets a name: a derivative repeats parts of its expression, and
/// `print` names nothing in texts of up to 64 nodes.
std::string print_derivative(const Expr& root, const Signature& signature = {});

/// The names of fields, by level and index.
using FieldNames = std::array<std::vector<std::string>, 3>;

/// The expression as device code for codegen/cuda/contract/ops.cuh: the statements `lets`, one per line, then `value`.
/// A read is a call, a sum takes a lambda, random names its coordinates, and a field is a member of head, row or col.
struct DevicePrinted {
  std::string lets, value;
  std::vector<Expr> statements;  ///< the expression of each let, in order, then that of the value
};
DevicePrinted print_for_device(const Expr& root, const Signature& signature, const FieldNames& fields);

/// A literal as the language writes it: 3, 0.5f, -inf, true.
std::string print_literal(Type type, double value);

}  // namespace attune::ir

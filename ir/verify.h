// ir/verify.h — the first broken rule of an expression, or none
#pragma once

#include <optional>
#include <string>

#include "ir/node.h"

namespace attune::ir {

/// What the slots of an expression stand for.
struct Signature {
  struct Capture {
    std::string name;
    Type type = Type::F32;
    int rank = 0;
    bool operator==(const Capture&) const = default;
  };
  struct Param {
    std::string name;
    Type type = Type::F32;
    bool operator==(const Param&) const = default;
  };
  std::vector<Capture> captures;
  std::vector<Param> params;
  bool operator==(const Signature&) const = default;
};

/// Types, arities, slots, binders: what every pass may rely on.
std::optional<std::string> verify(const Expr& root, const Signature& signature);

}  // namespace attune::ir

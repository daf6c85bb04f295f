// ir/verify.h — finds the first rule that an expression breaks, if any
#pragma once

#include <optional>
#include <string>

#include "ir/node.h"

namespace attune::ir {

/// The captures and parameters that an expression's slots refer to.
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
  /// For expressions of a part of a call: the first of four parameters, which are added to the part's own b, h, q_len
  /// and kv_len.
  std::optional<std::uint32_t> whole{};
  bool operator==(const Signature&) const = default;
};

/// Checks types, arities, slots and binders, on which every pass relies.
std::optional<std::string> verify(const Expr& root, const Signature& signature);

}  // namespace attune::ir

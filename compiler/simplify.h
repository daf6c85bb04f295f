// compiler/simplify.h — expressions rewritten: by rules, and without clamps that the limits they are used within make
// redundant
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "ir/range.h"

namespace attune::compiler {

/// A rewrite: `from` becomes `to` where `when` is proven. See rules.cpp for the letters and the rules for writing
/// one.
struct Rule {
  std::string_view from, to, when;
};
std::span<const Rule> rules();

/// A step of simplification, for `explain`.
struct Rewrite {
  std::string_view rule;  ///< "i - j < 1 -> i <= j", or what the range analysis proved
  ir::Expr from, to;
};

/// Equal to `e` bit for bit under `eval`, in both precisions, within `bounds`; never larger.
ir::Expr simplify(const ir::Expr& e, const ir::Bounds& bounds = {}, std::vector<Rewrite>* log = nullptr);

/// simplify for several expressions that share parts: caches its results.
class Simplify {
 public:
  explicit Simplify(const ir::Bounds& bounds);
  ~Simplify();
  ir::Expr operator()(const ir::Expr& e);
  /// Simplifies only the topmost operation; its arguments must be simplified already.
  ir::Expr topmost(const ir::Expr& e);

 private:
  std::unique_ptr<class Simplifier> simplifier_;
};

/// `e` without clamps that the limits it is used within make redundant: equal to `e` once both are clamped to [low,
/// high]; its arithmetic wraps only where that of `e` does. Merges literals in sums: x - 1 + 1 becomes x.
ir::Expr trim(const ir::Expr& e, double low, double high, ir::Ranger& range);

/// `e` with x <= y - 1 rewritten to x < y wherever y - 1 does not wrap, and each side of such a comparison trimmed to
/// the other side's range.
ir::Expr strict(const ir::Expr& e, ir::Ranger& range);

}  // namespace attune::compiler

// compiler/mod.h — struct Mod: the user's expressions as IR, and everything derived from them
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/node.h"
#include "ir/range.h"
#include <attune/tensor.h>

namespace attune::compiler {

/// The type that expressions see for elements of this type: Float, Int or Bool.
ir::Type type_of(DType dtype);

/// The part of a captured tensor that identifies a kernel: data, extents and strides are arguments.
struct CaptureSlot {
  std::string name;
  DType dtype = DType::f32;
  int rank = 0;
  bool operator==(const CaptureSlot&) const = default;
};

/// One term of a captured tensor's gradient: for every pair (q, kv) and every value of the loops' variables,
/// gradient[index] += upstream * value, with the index clamped as in the read.
struct Scatter {
  struct Loop {
    std::uint32_t binder, count;
  };
  std::uint32_t capture = 0;
  std::vector<ir::Expr> index;
  ir::Expr value;
  std::vector<Loop> loops;  ///< the sums around the read, outermost first; index and value may use their binders
};

/// The derivative of one expression.
struct Derivative {
  ir::Expr by;  ///< d score / d s, or d prob / d p; null for a sink
  std::vector<Scatter> captures;
};

/// Terms of the score that cancel in the softmax or simplify it, for engines to use. In real arithmetic
///   score == core + row,   and if affine   core == scale * s + bias.
/// `row` depends on (b, h, q) alone: it cancels in the softmax; the engine adds it back to lse and the row's maximum,
/// and subtracts it from a sink. Where it is -inf the row is empty; where it is +inf or NaN, lse and o are NaN. If
/// `origin` is used, the equation holds for any origin that is constant along a row: an engine takes an origin near its
/// tile, so that slope * (kv - origin) stays small where slope * kv would lose the fraction.
struct Fold {
  ir::Expr core, row;  ///< row is the literal 0 when nothing cancels
  bool affine = false;
  ir::Expr scale, bias;  ///< null unless affine; neither uses s
  ir::Interval range;    ///< core's values
  /// True if the range is narrow enough for exp2 without a running maximum: subtract range.hi instead.
  bool bounded() const;
};

/// Values hoisted out of the loops. Later levels may read the fields of earlier levels.
struct Levels {
  std::vector<ir::Expr> head;     ///< once per (batch, head)
  std::vector<ir::Expr> row;      ///< once per q
  std::vector<ir::Expr> col;      ///< once per kv
  std::vector<ir::Expr> element;  ///< what remains of each expression, once per element
};

struct Mod {
  ir::Expr score;  ///< s if the user gave none
  ir::Expr mask;   ///< true if the user gave none
  ir::Expr prob;   ///< p if the user gave none
  ir::Expr sink;   ///< null if the user gave none
  std::vector<CaptureSlot> captures;
  std::vector<ir::Signature::Param> params;
  std::optional<std::uint32_t> whole{};  ///< as in ir::Signature

  Derivative dscore, dprob, dsink;
  Fold fold;
  Levels levels;  ///< for score, mask and prob, in this order

  ir::Signature signature() const;
  /// Covers the expressions and the types of the tensors and parameters that they read: equal for equal kernels,
  /// independent of the data.
  ir::Digest digest() const;
  /// score, mask, prob and sink as text, one per line, for dumps and the log of the steps.
  std::string text() const;
  /// The differences from plain attention, each with its name: expressions, and the types of captures.
  std::vector<std::pair<std::string, std::string>> facts() const;
};

}  // namespace attune::compiler

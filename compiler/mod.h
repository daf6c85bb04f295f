// compiler/mod.h — struct Mod: what the user wrote, as IR, and all that was derived from it
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/range.h"
#include "ir/verify.h"
#include <attune/tensor.h>

namespace attune::compiler {

/// How the kernel sees elements of this type: Float, Int or Bool.
ir::Type type_of(DType dtype);

/// A captured tensor as far as a kernel's identity goes: data, extents and strides are arguments.
struct CaptureSlot {
  std::string name;
  DType dtype = DType::f32;
  int rank = 0;
  bool operator==(const CaptureSlot&) const = default;
};

/// One term of a captured tensor's gradient: for every pair (q, kv) and every value of the loops' variables,
/// gradient[index] += upstream * value, with the same clamping of the index as the read had.
struct Scatter {
  struct Loop {
    std::uint32_t binder, count;
  };
  std::uint32_t capture = 0;
  std::vector<ir::Expr> index;
  ir::Expr value;
  std::vector<Loop> loops;  ///< the sums the read stood in, outermost first; index and value may use their binders
};

/// The derivative of one expression.
struct Derivative {
  ir::Expr by;  ///< d score / d s, or d prob / d p; null for a sink
  std::vector<Scatter> captures;
};

/// What the softmax makes free, for engines to use. For real numbers,
///   score == core + row,   and if affine   core == scale * s + bias.
/// `row` depends on (b, h, q) alone: it cancels in the softmax, is added back to lse and the row's maximum, and is
/// subtracted from a sink. Where it is -inf the row is empty; where it is +inf or NaN, lse and o are NaN.
/// If `origin` is used, the equation holds for any value of it that stays the same along a row: an engine takes one
/// near its tile, so that slope * (kv - origin) stays small where slope * kv would lose the fraction.
struct Fold {
  ir::Expr core, row;  ///< row is the literal 0 when nothing cancels
  bool affine = false;
  ir::Expr scale, bias;  ///< null unless affine; neither uses s
  ir::Interval range;    ///< of core
  /// Near enough for exp2 without a running maximum: subtract range.hi instead.
  bool bounded() const;
};

/// Values hoisted out of the loops. Fields of a level may be read by the levels after it and by what is left.
struct Levels {
  std::vector<ir::Expr> head;  ///< once per (batch, head)
  std::vector<ir::Expr> row;   ///< once per q
  std::vector<ir::Expr> col;   ///< once per kv
  std::vector<ir::Expr> left;  ///< the expressions themselves, per element
};

struct Mod {
  ir::Expr score;  ///< s alone when there is none
  ir::Expr mask;   ///< true when there is none
  ir::Expr prob;   ///< p alone when there is none
  ir::Expr sink;   ///< null when there is none
  std::vector<CaptureSlot> captures;
  std::vector<ir::Signature::Param> params;

  Derivative dscore, dprob, dsink;
  Fold fold;
  Levels levels;  ///< of score, mask and prob, in this order

  ir::Signature signature() const;
  /// Of the expressions and the types of what they read: equal for equal kernels, whatever the data.
  ir::Digest digest() const;
  /// score, mask, prob and sink as text, one a line: what a dump and a log of the steps show.
  std::string text() const;
  /// What is special about it, each with its name: expressions that are not plain, and what captures hold.
  std::vector<std::pair<std::string, std::string>> facts() const;
};

}  // namespace attune::compiler

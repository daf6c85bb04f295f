// codegen/facts/exponent.cpp — the score as a power of two, its factors moved to where they cost least; the place where
// its part without s is largest
#include "codegen/facts/gpu_parts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>

#include "compiler/fold.h"
#include "compiler/lower.h"
#include "compiler/simplify.h"

namespace attune::codegen {
namespace {

// ---- factors --------------------------------------------------------------------------------------------------------

using compiler::Vary, compiler::varies;
using ir::Expr, ir::Input, ir::Op;

/// Expressions nested deeper than this are multiplied as they are.
constexpr std::uint32_t deepest_product = 400;
/// Products of more factors than this are not split further: x * x, squared repeatedly, has 2^n of them.
constexpr std::size_t most_factors = 8;

Expr log2_of_e() { return ir::real(static_cast<float>(std::numbers::log2e)); }

/// A missing factor is null: 1. Literals come last, merged.
Expr mul(const Expr& a, const Expr& b) {
  if (!a || !b) return a ? a : b;
  if (ir::is_literal(a) && ir::is_literal(b)) {
    // Masks that add or choose the lowest float must stay finite, since only -inf removes a pair: clamp.
    constexpr double most = std::numeric_limits<float>::max();
    const double x = ir::literal_value(*a), y = ir::literal_value(*b), xy = x * y;
    return ir::real(static_cast<float>(std::isfinite(x) && std::isfinite(y) ? std::clamp(xy, -most, most) : xy));
  }
  if (ir::is_literal(a)) return mul(b, a);
  if (ir::is_literal(b) && a->op == Op::Mul && ir::is_literal(a->args[1])) return mul(a->args[0], mul(a->args[1], b));
  return ir::op(Op::Mul, a, b);
}
Expr div(const Expr& a, const Expr& b) {
  if (!b) return a;
  if (!ir::is_literal(b)) return ir::op(Op::Div, a ? a : ir::real(1), b);
  const double by = 1 / ir::literal_value(*b);
  // If a float cannot hold the reciprocal, keep the division.
  if (!(std::abs(by) > 0x1p-126 && std::abs(by) < 0x1p127)) return ir::op(Op::Div, a ? a : ir::real(1), b);
  return a && ir::is_literal(a) ? ir::real(static_cast<float>(ir::literal_value(*a) * by))
                                : mul(a, ir::real(static_cast<float>(by)));
}

bool per_head(const Expr& e) { return varies(e) == Vary::Head && !e->free && !ir::uses(e, Input::Origin); }

class Gather {
 public:
  /// e * c, gathered; c is per head, or null (always for an e that is not a Float).
  Expr times(const Expr& e, const Expr& c) {
    if (e->free || e->depth > deepest_product) return mul(e, c);
    const auto [found, is_new] = done_.try_emplace({e->digest, c ? c->digest : ir::Digest{}});
    // Arguments are smaller than their node, so the recursion never asks for the entry being made.
    if (is_new) {
      const Expr result = made(e, c);
      found->second = result;
    }
    return found->second;
  }

 private:
  struct Product {
    std::vector<Expr> above, below;
    bool negative = false;
  };

  Expr made(const Expr& e, const Expr& c) {
    if (per_head(e)) return mul(e, c);
    // A value that decides a choice keeps its rounding: x / 49 and x * (1 / 49) are not 1 for the same x.
    if (e->type != ir::Type::F32 || rounds(e->op)) return mul(e, c);
    const auto arg = [&](std::size_t i) -> const Expr& { return e->args[i]; };
    switch (e->op) {
      case Op::Add:
      case Op::Sub: return ir::op(e->op, times(arg(0), c), times(arg(1), c));
      case Op::Where: return ir::op(Op::Where, arg(0), times(arg(1), c), times(arg(2), c));
      case Op::Neg:
      case Op::Mul:
      case Op::Div: return product(e, c);
      case Op::Log:
        if (c && ir::same(c, log2_of_e())) return ir::op(Op::Log2, times(arg(0), nullptr));
        break;
      case Op::F32: return mul(position(e), c);
      default: break;
    }
    return mul(inside(e), c);
  }

  static bool rounds(Op op) { return op == Op::Floor || op == Op::Ceil || op == Op::Round || op == Op::Trunc; }

  /// f32(kv - q) becomes f32(kv - origin) - f32(q - origin): one subtraction per element, and conversions only per row
  /// and column. Its rounding is no worse than that of f32(kv - q), since the origin is never far from q.
  static Expr position(const Expr& e) {
    const Expr& i = e->args[0];
    if (i->op == Op::Abs) {
      const Expr inner = ir::op(Op::F32, i->args[0]), split = position(inner);
      return split == inner ? e : ir::op(Op::Abs, split);
    }
    const auto is = [](const Expr& x, Input which) {
      return x->op == Op::Input && x->bits == static_cast<unsigned>(which);
    };
    if (i->op != Op::Sub) return e;
    const bool ahead = is(i->args[0], Input::KV) && is(i->args[1], Input::Q);
    if (!ahead && !(is(i->args[0], Input::Q) && is(i->args[1], Input::KV))) return e;
    const auto from_origin = [](const Expr& x) {
      return ir::op(Op::F32, ir::op(Op::Sub, x, ir::input(Input::Origin)));
    };
    return ir::op(Op::Sub, from_origin(i->args[0]), from_origin(i->args[1]));
  }

  /// The same operation, with each argument gathered separately.
  Expr inside(const Expr& e) {
    if (e->op == Op::Sum) return e;
    std::array<Expr, ir::max_args> args;
    for (std::size_t i = 0; i < e->arity; ++i) args[i] = times(e->args[i], nullptr);
    return ir::with_args(e, {args.data(), e->arity});
  }

  void flatten(const Expr& e, bool below, Product& into) {
    if (!per_head(e) && !e->free && into.above.size() + into.below.size() < most_factors) {
      if (e->op == Op::Neg) {
        into.negative = !into.negative;
        return flatten(e->args[0], below, into);
      }
      if (e->op == Op::Mul || e->op == Op::Div) {
        flatten(e->args[0], below, into);
        return flatten(e->args[1], below != (e->op == Op::Div), into);
      }
    }
    (below ? into.below : into.above).push_back(e);
  }

  Expr product(const Expr& e, const Expr& c) {
    Product p;
    flatten(e, false, p);
    std::array<std::vector<Expr>, 4> above;
    std::array<Expr, 4> below;
    for (const Expr& x : p.above) above[level(x)].push_back(x);
    for (const Expr& x : p.below) below[level(x)] = mul(below[level(x)], times(x, nullptr));
    Expr head = c;
    for (const Expr& x : above[0]) head = mul(x, head);
    if (below[0]) head = div(head, below[0]);
    if (p.negative && head) head = ir::is_literal(head) ? mul(head, ir::real(-1)) : ir::op(Op::Neg, head);

    Expr* carrier = nullptr;
    for (const std::size_t i : {1u, 2u, 3u})
      if (!carrier && !above[i].empty()) carrier = &carrier_of(above[i]);
    Expr out;
    for (const std::size_t i : {3u, 1u, 2u}) {
      Expr part;
      for (const Expr& x : above[i]) part = mul(part, times(x, &x == carrier ? head : nullptr));
      if (below[i]) part = ir::op(Op::Div, part ? part : ir::real(1), below[i]);
      out = mul(out, part);
    }
    if (!carrier) out = mul(out, head);
    return p.negative && !head ? ir::op(Op::Neg, out) : out;
  }

  static std::size_t level(const Expr& e) {
    if (per_head(e)) return 0;
    const Vary vary = varies(e);
    return vary == Vary::Row ? 1 : vary == Vary::Col ? 2 : 3;
  }

  /// The factor that absorbs another at no cost: a sum, where it joins a multiply-add; else any.
  static Expr& carrier_of(std::vector<Expr>& factors) {
    for (Expr& x : factors)
      if (x->op == Op::Add || x->op == Op::Sub) return x;
    return factors.front();
  }

  std::map<std::pair<ir::Digest, ir::Digest>, Expr> done_;
};

}  // namespace

Expr gathered(const Expr& e) { return compiler::simplify(Gather().times(e, nullptr), compiler::coordinate_bounds()); }

Expr exponent(const Expr& core, const Expr& scale) {
  const Expr s = ir::input(Input::S);
  const Expr scaled = ir::substitute(core, {{s->digest, ir::op(Op::Mul, s, scale)}});
  return compiler::simplify(Gather().times(scaled, log2_of_e()), compiler::coordinate_bounds());
}

namespace {

// ---- the largest part without s -------------------------------------------------------------------------------------

using compiler::Vary, compiler::varies;
using ir::Expr, ir::Input, ir::Level, ir::Op;

/// The terms of a sum that do not depend on s, as a sum; null if there are none, or if the others are not a summand.
Expr term_of(const Expr& e) {
  if (e->op != Op::Add && e->op != Op::Sub) return nullptr;
  const auto uses_s = [](const Expr& x) { return ir::uses(x, Input::S); };
  const Expr &a = e->args[0], &b = e->args[1];
  if (uses_s(a) && uses_s(b)) return nullptr;
  if (!uses_s(a) && !uses_s(b)) return nullptr;
  const Expr& with = uses_s(a) ? a : b;
  const Expr& rest = uses_s(a) ? b : a;
  const Expr alone = e->op == Op::Sub && uses_s(a) ? ir::op(Op::Neg, rest) : rest;
  // The sign of the inner term is that of `with`.
  const bool negative = e->op == Op::Sub && uses_s(b);
  const Expr inner = negative ? nullptr : term_of(with);
  return inner ? ir::op(Op::Add, inner, alone) : alone;
}

/// With the expressions of its fields.
Expr whole(const Expr& e, const compiler::Levels& levels) {
  ir::DigestMap<Expr> by;
  const auto add = [&](Level level, const std::vector<Expr>& list) {
    std::vector<Expr> fields;
    for (const Expr& field : list) fields.push_back(by.empty() ? field : ir::substitute(field, by));
    for (std::uint32_t i = 0; i < list.size(); ++i) by.emplace(ir::field(level, i, list[i]->type)->digest, fields[i]);
  };
  add(Level::Head, levels.head);
  add(Level::Row, levels.row);
  add(Level::Col, levels.col);
  return by.empty() ? e : ir::substitute(e, by);
}

bool moves(const Expr& e) { return ir::uses(e, Input::KV); }

/// How an expression changes along a row, as if Ints did not wrap.
enum class Shape : std::uint8_t { constant, monotone, bent, any };

Shape shape_of(const Expr& e) {
  if (!moves(e)) return Shape::constant;
  const auto arg = [&](std::size_t i) { return shape_of(e->args[i]); };
  const auto one_moves = [&] { return !moves(e->args[0]) ? arg(1) : !moves(e->args[1]) ? arg(0) : Shape::any; };
  switch (e->op) {
    case Op::Input: return Shape::monotone;
    case Op::Abs: return arg(0) == Shape::monotone && ir::uses(e, Input::Q) ? Shape::bent : Shape::any;
    case Op::Neg:
    case Op::F32:
    case Op::Floor:
    case Op::Ceil:
    case Op::Round:
    case Op::Trunc:
    case Op::Sqrt:
    case Op::Exp:
    case Op::Exp2:
    case Op::Log:
    case Op::Log2:
    case Op::Tanh:
    case Op::Sigmoid: return arg(0);
    case Op::Add:
    case Op::Sub:
    case Op::Mul:
    case Op::Min:
    case Op::Max: return one_moves();
    case Op::Div: return moves(e->args[1]) ? Shape::any : arg(0);
    case Op::Literal:
    default: return Shape::any;
  }
}

/// Expressions that are deeper are not looked into.
constexpr std::uint32_t deepest = 64;

}  // namespace

Peaked peaked(const compiler::Levels& levels) {
  const Expr term = term_of(levels.element[0]);
  if (!term || term->random || term->depth > deepest || ir::uses(term, Input::P)) return {};
  const Expr expanded = whole(term, levels);
  if (expanded->depth > deepest) return {};
  switch (shape_of(expanded)) {
    case Shape::constant: return {};
    case Shape::monotone: return {term, Peak::ends};
    case Shape::bent: return {term, Peak::diagonal};
    case Shape::any: break;
  }
  return varies(term) == Vary::Col ? Peaked{term, Peak::columns} : Peaked{};
}

}  // namespace attune::codegen

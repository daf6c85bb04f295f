// compiler/trim.cpp — carries limits inwards through operations that rise with their argument
#include "compiler/trim.h"

#include <array>
#include <cmath>

namespace attune::compiler {
namespace {

using ir::Expr, ir::Op, ir::Type;

constexpr double least_int = -0x1p31, greatest_int = 0x1p31 - 1;

bool is_small(double value) { return value > least_int && value <= greatest_int; }

/// x plus a literal: written x - 3 for -3, and merged with a literal that x already adds.
Expr plus(const Expr& x, double by, ir::Ranger& range) {
  if (by == 0) return x;
  if ((x->op == Op::Add || x->op == Op::Sub) && ir::is_literal(x->args[1])) {
    const double inner = ir::literal_value(*x->args[1]) * (x->op == Op::Add ? 1 : -1);
    const ir::Interval r = range(x->args[0]);
    const bool never_wraps = r.lo + inner >= least_int && r.hi + inner <= greatest_int;
    if (never_wraps && is_small(inner + by)) return plus(x->args[0], inner + by, range);
  }
  const auto literal = [](double v) { return ir::integer(static_cast<std::int32_t>(v)); };
  return by < 0 ? ir::op(Op::Sub, x, literal(-by)) : ir::op(Op::Add, x, literal(by));
}

}  // namespace

Expr trim(const Expr& e, double low, double high, ir::Ranger& range) {
  const auto& a = e->args;
  if (e->type != Type::I32 || e->depth > 200) return e;
  const auto fits = [&](const Expr& x, double times, double by) {
    const ir::Interval r = range(x);
    return r.lo * times + by >= least_int && r.hi * times + by <= greatest_int;
  };
  if (e->op == Op::Clamp && ir::is_literal(a[1]) && ir::is_literal(a[2])) {
    const double from = ir::literal_value(*a[1]), to = ir::literal_value(*a[2]);
    const ir::Interval r = range(a[0]);
    if (from > to) return e;
    if ((from <= low || r.lo >= from) && (to >= high || r.hi <= to)) return trim(a[0], low, high, range);
    return e;
  }
  if (e->op == Op::Min || e->op == Op::Max) {
    const Expr x = trim(a[0], low, high, range), y = trim(a[1], low, high, range);
    const ir::Interval rx = range(x), ry = range(y);
    const bool is_min = e->op == Op::Min;
    if (rx.hi <= ry.lo) return is_min ? x : y;
    if (ry.hi <= rx.lo) return is_min ? y : x;
    return ir::op(e->op, x, y);
  }
  if (e->op == Op::Where) return ir::op(Op::Where, a[0], trim(a[1], low, high, range), trim(a[2], low, high, range));
  if (e->op == Op::Add || e->op == Op::Sub) {
    const bool left = e->op == Op::Add && ir::is_literal(a[0]);
    const Expr &x = a[left ? 1 : 0], &literal = a[left ? 0 : 1];
    if (!ir::is_literal(literal) || ir::is_literal(x)) return e;
    const double by = ir::literal_value(*literal) * (e->op == Op::Add ? 1 : -1);
    if (!is_small(by) || !fits(x, 1, by)) return e;
    const Expr inner = trim(x, low - by, high - by, range);
    return plus(fits(inner, 1, by) ? inner : x, by, range);
  }
  if (e->op == Op::Mul && ir::is_literal(a[1]) && ir::literal_value(*a[1]) > 0) {
    const double by = ir::literal_value(*a[1]);
    if (!fits(a[0], by, 0)) return e;
    const Expr inner = trim(a[0], std::floor(low / by), std::ceil(high / by), range);
    return fits(inner, by, 0) ? ir::op(Op::Mul, inner, a[1]) : e;
  }
  return e;
}

Expr strict(const Expr& e, ir::Ranger& range) {
  const auto one_less = [&](const Expr& y) {
    return y->op == Op::Sub && y->type == Type::I32 && ir::is_literal(y->args[1], 1) &&
           range(y->args[0]).lo > least_int;
  };
  // If y is outside x's range, its distance makes no difference to x < y.
  const auto ordered = [&](const Expr& node, Op op, Expr x, Expr y) {
    const bool flips = op == Op::Gt || op == Op::Ge, equal = op == Op::Le || op == Op::Ge;
    if (flips) std::swap(x, y);
    const ir::Interval rx = range(x);
    y = trim(y, equal ? rx.lo - 1 : rx.lo, equal ? rx.hi : rx.hi + 1, range);
    const ir::Interval ry = range(y);
    x = trim(x, equal ? ry.lo : ry.lo - 1, equal ? ry.hi + 1 : ry.hi, range);
    if (flips) std::swap(x, y);
    return op == node->op ? ir::with_args(node, std::array{x, y}) : ir::op(op, x, y);
  };
  return ir::rebuild(e, [&](const Expr& node, std::span<const Expr> args) -> Expr {
    if (args.size() != 2 || args[0]->type != Type::I32) return nullptr;
    if (node->op == Op::Le && one_less(args[1])) return ordered(node, Op::Lt, args[0], args[1]->args[0]);
    if (node->op == Op::Ge && one_less(args[0])) return ordered(node, Op::Gt, args[0]->args[0], args[1]);
    const bool compares = node->op == Op::Lt || node->op == Op::Le || node->op == Op::Gt || node->op == Op::Ge;
    return compares ? ordered(node, node->op, args[0], args[1]) : nullptr;
  });
}

}  // namespace attune::compiler

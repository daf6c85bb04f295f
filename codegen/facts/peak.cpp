// codegen/facts/peak.cpp — the part of a score that does not depend on s, and where it is largest
#include "codegen/facts/peak.h"

#include "compiler/fold.h"

namespace attune::codegen {
namespace {

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

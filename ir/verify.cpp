// ir/verify.cpp — the rules that every expression obeys, in the order of ops.def
#include "ir/verify.h"

#include <cmath>

namespace attune::ir {
namespace {

std::optional<std::string> leaf(const Node& n, const Signature& signature) {
  if (n.op == Op::Literal && n.type == Type::Bool && n.bits > 1) return "a Bool literal holds more than a bit";
  if (n.op == Op::Literal && n.type == Type::F32 && std::isnan(literal_value(n)) && n.bits != 0x7fc00000u)
    return "a NaN literal is not the quiet NaN";
  if (n.op == Op::Input && (n.bits >= input_count || n.type != type_of(static_cast<Input>(n.bits))))
    return "an input does not exist or has another type";
  if (n.op == Op::Param && (n.bits >= signature.params.size() || n.type != signature.params[n.bits].type))
    return "a parameter does not exist or has another type";
  if (n.op == Op::Read && (n.bits >= signature.captures.size() || n.type != signature.captures[n.bits].type ||
                           n.arity != signature.captures[n.bits].rank))
    return "a read names no capture, or has another type or rank";
  if (n.op == Op::Bound && (n.type != Type::I32 || n.bits == 0 || n.bits > max_binders))
    return "a bound variable is not a canonical Int";
  return std::nullopt;
}

std::optional<std::string> node(const Node& n, const Signature& signature) {
  const OpRow& r = row(n.op);
  if (n.op != Op::Read && n.arity != r.args) return "wrong number of arguments";
  if (auto broken = leaf(n, signature)) return broken;
  const std::size_t first = n.op == Op::Where ? 1 : 0;
  for (std::size_t i = 0; i < n.arity; ++i) {
    const Type t = n.args[i]->type;
    if (i < first ? t != Type::Bool : !takes(r.takes, t)) return "an argument has a type the operation does not take";
    if (i > first && t != n.args[first]->type) return "the arguments have different types";
  }
  if (r.gives == Gives::Arg && n.type != n.args[n.arity - 1u]->type) return "the type is not its argument's";
  if (r.gives == Gives::Bool && n.type != Type::Bool) return "the type is not Bool";
  if (r.gives == Gives::I32 && n.type != Type::I32) return "the type is not Int";
  if (r.gives == Gives::F32 && n.type != Type::F32) return "the type is not Float";
  if (n.op == Op::Sum && (sum_count(n) > max_sum_count || sum_binder(n) != n.args[0]->binder + 1))
    return "a sum is too long or its binder is not canonical";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> verify(const Expr& root, const Signature& signature) {
  if (!root) return "there is no expression";
  for (const Expr& e : in_order(root))
    if (auto broken = node(*e, signature)) return std::string(row(e->op).name) + ": " + *broken;
  if (root->free) return "a bound variable is used outside of its sum";
  return std::nullopt;
}

}  // namespace attune::ir

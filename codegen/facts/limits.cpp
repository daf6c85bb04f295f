// codegen/facts/limits.cpp — the part of a mask that is a first and a last key per row
#include "codegen/facts/gpu_parts.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "compiler/lower.h"
#include "compiler/simplify.h"
#include "ir/range.h"

namespace attune::codegen {
namespace {

using ir::Expr, ir::Input, ir::Interval, ir::Op;

bool is_fixed(const Expr& e) { return !ir::uses(e, Input::KV) && !e->random; }
bool is_kv(const Expr& e) { return e->op == Op::Input && e->bits == static_cast<std::uint32_t>(Input::KV); }

Interval range_of(const Expr& e) { return ir::range(e, compiler::coordinate_bounds()); }
bool fits(double low, double high) {
  return low >= std::numeric_limits<std::int32_t>::min() && high <= std::numeric_limits<std::int32_t>::max();
}

/// a - b + shift, unless that might wrap.
std::optional<Expr> difference(const Expr& a, const Expr& b, int shift) {
  const Interval of_a = range_of(a), of_b = range_of(b);
  const double low = of_a.lo - of_b.hi, high = of_a.hi - of_b.lo;
  if (!fits(low, high) || !fits(low + shift, high + shift)) return std::nullopt;
  return compiler::simplify(ir::op(Op::Add, ir::op(Op::Sub, a, b), ir::integer(shift)), compiler::coordinate_bounds());
}

/// kv + offset, or offset - kv.
struct Side {
  bool rises;
  Expr offset;
};
std::optional<Side> side_of(const Expr& e) {
  if (is_kv(e)) return Side{true, ir::integer(0)};
  if (e->op != Op::Add && e->op != Op::Sub) return std::nullopt;
  const Expr &a = e->args[0], &b = e->args[1];
  const bool first = is_kv(a) && is_fixed(b), second = is_kv(b) && is_fixed(a);
  if (!first && !second) return std::nullopt;
  const Interval offset = range_of(first ? b : a), kv = range_of(first ? a : b);
  const bool rises = e->op == Op::Add || first;
  const bool negative = e->op == Op::Sub && first;
  const double low = rises ? (negative ? -offset.hi : offset.lo) + kv.lo : offset.lo - kv.hi;
  const double high = rises ? (negative ? -offset.lo : offset.hi) + kv.hi : offset.hi - kv.lo;
  if (!fits(low, high) || (negative && !fits(-offset.hi, -offset.lo))) return std::nullopt;
  return Side{rises, negative ? ir::op(Op::Neg, b) : first ? b : a};
}

void terms_of(const Expr& mask, std::vector<Expr>& out) {
  if (mask->op == Op::And) {
    terms_of(mask->args[0], out);
    terms_of(mask->args[1], out);
  } else {
    out.push_back(mask);
  }
}

/// abs(x) <= c as two terms, -c <= x and x <= c, which a GPU compares at once. Not if x may be INT_MIN, whose abs is
/// itself.
std::vector<Expr> sides_of(const Expr& term) {
  if (term->op < Op::Lt || term->op > Op::Ge) return {term};
  const bool reversed = term->op == Op::Gt || term->op == Op::Ge;
  const Expr &low = term->args[reversed], &high = term->args[!reversed];
  if (low->op != Op::Abs || low->type != ir::Type::I32 || !ir::is_literal(high)) return {term};
  const Expr& x = low->args[0];
  const bool strict = term->op == Op::Lt || term->op == Op::Gt;
  const auto most = static_cast<std::int32_t>(ir::literal_value(*high));
  if (most < 0 || range_of(x).lo <= std::numeric_limits<std::int32_t>::min()) return {term};
  const Op op = strict ? Op::Lt : Op::Le;
  return {ir::op(op, ir::integer(-most), x), ir::op(op, x, high)};
}

/// A term of the conjunction that is a limit.
struct Limit {
  bool is_last;
  Expr at;
};
std::optional<Limit> limit_of(const Expr& term) {
  if (term->op < Op::Lt || term->op > Op::Ge || term->args[0]->type != ir::Type::I32) return std::nullopt;
  const bool reversed = term->op == Op::Gt || term->op == Op::Ge;
  const Expr &low = term->args[reversed], &high = term->args[!reversed];
  const int strict = term->op == Op::Lt || term->op == Op::Gt;
  std::optional<Expr> at;
  bool is_last = false;
  if (const auto side = side_of(low); side && is_fixed(high)) {
    is_last = side->rises;  // kv + x <= high, or x - kv <= high
    at = is_last ? difference(high, side->offset, -strict) : difference(side->offset, high, strict);
  } else if (const auto other = side_of(high); other && is_fixed(low)) {
    is_last = !other->rises;  // low <= x - kv, or low <= kv + x
    at = is_last ? difference(other->offset, low, -strict) : difference(low, other->offset, strict);
  }
  if (!at) return std::nullopt;
  return Limit{is_last, *at};
}

}  // namespace

Limits limits_of(const Expr& mask) {
  std::vector<Expr> terms;
  terms_of(mask, terms);
  Limits out{nullptr, nullptr, nullptr};
  const auto join = [](Expr& into, Op op, const Expr& e) { into = into ? ir::op(op, into, e) : e; };
  for (const Expr& term : terms) {
    Expr rest;
    for (const Expr& side : sides_of(term))
      if (const auto limit = limit_of(side))
        join(limit->is_last ? out.last : out.first, limit->is_last ? Op::Min : Op::Max, limit->at);
      else
        join(rest, Op::And, side);
    if (rest) join(out.rest, Op::And, rest);
  }
  if (!out.rest) out.rest = ir::boolean(true);
  return out;
}

}  // namespace attune::codegen

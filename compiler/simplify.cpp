// compiler/simplify.cpp — expressions rewritten: by the rules of rules.cpp until none applies; limits carried inwards
// to drop clamps
#include "compiler/simplify.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include <attune/error.h>

#include "ir/eval.h"
#include "ir/parse.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Op, ir::Type;

// A letter of a rule is a parameter whose slot says what it may match.
struct Letter {
  std::string_view name;
  Type type;
  enum class Is : std::uint8_t { Anything, NoLiteral, Literal } is;
};
constexpr std::array letters{
    Letter{"i", Type::I32, Letter::Is::Anything},  Letter{"j", Type::I32, Letter::Is::Anything},
    Letter{"d", Type::I32, Letter::Is::Anything},  Letter{"w", Type::F32, Letter::Is::Anything},
    Letter{"k", Type::I32, Letter::Is::NoLiteral}, Letter{"l", Type::I32, Letter::Is::NoLiteral},
    Letter{"x", Type::F32, Letter::Is::Anything},  Letter{"y", Type::F32, Letter::Is::Anything},
    Letter{"z", Type::F32, Letter::Is::NoLiteral}, Letter{"m", Type::Bool, Letter::Is::Anything},
    Letter{"n", Type::Bool, Letter::Is::Anything}, Letter{"o", Type::Bool, Letter::Is::Anything},
    Letter{"a", Type::I32, Letter::Is::Literal},   Letter{"c", Type::I32, Letter::Is::Literal},
    Letter{"u", Type::F32, Letter::Is::Literal},   Letter{"v", Type::F32, Letter::Is::Literal},
};
/// The match of each letter: nodes of the matched expression, which outlives the Binding.
using Binding = std::array<const Expr*, letters.size()>;

// A saturated tree size no longer shows whether a longer pattern made the expression larger.
constexpr std::uint32_t too_large = std::numeric_limits<std::uint32_t>::max();

struct Pattern {
  Expr from, to, when;
  std::string_view name;
  bool grows;  ///< as written, `to` is longer than `from`
};

struct Patterns {
  std::vector<std::string> names;
  std::array<std::vector<Pattern>, ir::op_rows.size()> by_op;
};

const Patterns& patterns() {
  static const Patterns& made = *[] {
    auto* p = new Patterns;
    ir::Scope scope{.name = "rule", .inputs = 0, .expected = {}, .signature = nullptr, .lets = {}};
    for (std::size_t i = 0; i < letters.size(); ++i)
      scope.lets.emplace(letters[i].name, ir::param(static_cast<std::uint32_t>(i), letters[i].type));
    p->names.reserve(rules().size());
    for (const Rule& rule : rules()) {
      p->names.push_back(std::string(rule.from) + " -> " + std::string(rule.to));
      const Expr from = ir::parse(rule.from, scope), to = ir::parse(rule.to, scope);
      p->by_op[static_cast<std::size_t>(from->op)].push_back({from, to,
                                                              rule.when.empty() ? nullptr : ir::parse(rule.when, scope),
                                                              p->names.back(), to->size > from->size});
    }
    return p;
  }();
  return made;
}
// Made when the library is loaded: a child that is forked while another thread makes them could never simplify.
[[maybe_unused]] const Patterns& made_at_load = patterns();

bool commutes(Op op) {
  return op == Op::Add || op == Op::Mul || op == Op::And || op == Op::Or || op == Op::BitAnd || op == Op::BitOr ||
         op == Op::BitXor || op == Op::Eq || op == Op::Ne || op == Op::Min || op == Op::Max;
}

// Patterns are a few nodes deep: recursion is bounded by the table.
bool match(const Expr& pattern, const Expr& e, Binding& bound) {
  if (pattern->type != e->type) return false;
  if (pattern->op == Op::Param) {
    const Letter& letter = letters[pattern->bits];
    if (letter.is == Letter::Is::Literal && !ir::is_literal(e)) return false;
    if (letter.is == Letter::Is::NoLiteral && ir::is_literal(e)) return false;
    const Expr*& slot = bound[pattern->bits];
    if (slot) return ir::same(*slot, e);
    slot = &e;
    return true;
  }
  if (pattern->op != e->op || pattern->bits != e->bits) return false;
  const auto in_order = [&](std::size_t first, std::size_t second) {
    return match(pattern->args[0], e->args[first], bound) && match(pattern->args[1], e->args[second], bound);
  };
  if (e->arity == 2 && commutes(e->op)) {
    const Binding before = bound;
    if (in_order(0, 1)) return true;
    bound = before;
    return in_order(1, 0);
  }
  for (std::size_t i = 0; i < e->arity; ++i)
    if (!match(pattern->args[i], e->args[i], bound)) return false;
  return true;
}

}  // namespace

class Simplifier {
 public:
  Simplifier(const ir::Bounds& bounds, std::vector<Rewrite>* log) : range_(bounds), log_(log) {}

  Expr run(const Expr& root) {
    return ir::rebuild(root,
                       [&](const Expr& node, std::span<const Expr> args) { return reduce(ir::with_args(node, args)); });
  }

  /// Requires simplified arguments; the result is simplified throughout.
  Expr reduce(const Expr& e) {
    if (e->arity == 0) return e;
    if (const auto found = done_.find(e->digest); found != done_.end()) return found->second;
    Expr now = e;
    for (int turns = 0;; ++turns) {
      Expr next = once(now);
      if (!next) break;
      now = std::move(next);
      if (turns == 100) throw Bug("the rewrite rules go in circles");
    }
    done_.emplace(e->digest, now);
    if (now != e) done_.emplace(now->digest, now);
    return now;
  }

 private:
  // One step, or null when none applies.
  Expr once(const Expr& e) {
    if (e->arity == 0) return nullptr;
    if (Expr next = literal_of(e)) return recorded("literal arithmetic", e, next);
    if (Expr next = proven(e)) return recorded("proven by its range", e, next);
    if (Expr next = sum_of(e)) return recorded("a sum of no or one term", e, next);
    for (const Pattern& p : patterns().by_op[static_cast<std::size_t>(e->op)]) {
      Binding bound{};
      if (!match(p.from, e, bound)) continue;
      if (p.when && !range_(plug(p.when, bound, Tidy::Not)).is(1)) continue;
      // Compare sizes before rules run on the parts: x / v would otherwise try 1.0f / v by itself, forever.
      if (const auto size = plug(p.to, bound, Tidy::Literals)->size; size > e->size || (p.grows && size == too_large))
        continue;
      Expr next = plug(p.to, bound, Tidy::Wholly);
      if (!ir::same(next, e)) return recorded(p.name, e, next);
    }
    return nullptr;
  }

  enum class Tidy : std::uint8_t { Not, Literals, Wholly };

  // The pattern with its letters filled in. Conditions stay as written: range analysis needs no simpler form.
  Expr plug(const Expr& pattern, const Binding& bound, Tidy tidy) {
    if (pattern->op == Op::Param) return *bound[pattern->bits];
    if (pattern->arity == 0) return pattern;
    std::array<Expr, ir::max_args> args;
    for (std::size_t i = 0; i < pattern->arity; ++i) args[i] = plug(pattern->args[i], bound, tidy);
    const Expr made = ir::make(pattern->op, pattern->type, pattern->bits, {args.data(), pattern->arity});
    if (tidy == Tidy::Wholly) return reduce(made);
    const Expr folded = tidy == Tidy::Literals ? literal_of(made) : nullptr;
    return folded ? folded : made;
  }

  // Folds literals where both precisions agree, so that the oracle's doubles are not rounded early.
  static Expr literal_of(const Expr& e) {
    if (e->op == Op::Read || e->op == Op::Sum || ir::draws(e->op) || e->op == Op::Custom) return nullptr;
    std::array<double, ir::max_args> values{};
    for (std::size_t i = 0; i < e->arity; ++i) {
      if (!ir::is_literal(e->args[i])) return nullptr;
      values[i] = ir::literal_value(*e->args[i]);
    }
    const std::span<const double> args(values.data(), e->arity);
    const Type of = e->args[e->arity - 1u]->type;
    const double exact = ir::apply(e->op, of, args, ir::Precision::f64);
    const double rounded = ir::apply(e->op, of, args, ir::Precision::f32);
    const bool agree = std::isnan(exact) ? std::isnan(rounded)
                                         : std::bit_cast<std::uint64_t>(exact) == std::bit_cast<std::uint64_t>(rounded);
    return agree ? ir::literal(e->type, exact) : nullptr;
  }

  // Not for Floats: an interval does not distinguish -0 from 0.
  Expr proven(const Expr& e) {
    if (e->type == Type::F32 || e->free) return nullptr;
    const ir::Interval r = range_(e);
    return r.lo == r.hi && !r.nan ? ir::literal(e->type, r.lo) : nullptr;
  }

  Expr sum_of(const Expr& e) {
    if (e->op != Op::Sum) return nullptr;
    if (ir::sum_count(*e) == 0) return ir::zero(e->type);
    // A Float sum starts at +0: 0 + -0 is 0, so one Float term is not the sum.
    if (ir::sum_count(*e) == 1 && e->type == Type::I32)
      return run(ir::rename(e->args[0], ir::bound(ir::sum_binder(*e)), ir::integer(0)));
    return nullptr;
  }

  Expr recorded(std::string_view rule, const Expr& from, const Expr& to) {
    if (log_) log_->push_back({rule, from, to});
    return to;
  }

  ir::Ranger range_;
  std::vector<Rewrite>* log_;
  ir::DigestMap<Expr> done_;  ///< the result for each node; a result maps to itself
};

Simplify::Simplify(const ir::Bounds& bounds) : simplifier_(std::make_unique<Simplifier>(bounds, nullptr)) {}
Simplify::~Simplify() = default;
ir::Expr Simplify::operator()(const ir::Expr& e) { return simplifier_->run(e); }
ir::Expr Simplify::topmost(const ir::Expr& e) { return simplifier_->reduce(e); }

ir::Expr simplify(const ir::Expr& e, const ir::Bounds& bounds, std::vector<Rewrite>* log) {
  return Simplifier(bounds, log).run(e);
}

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

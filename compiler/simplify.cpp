// compiler/simplify.cpp — the rewrite rules (a table of text) and the engine under it
//
// Rules for writing rules:
//   1. Both sides are equal under eval, bit for bit, in f64 and in f32, for every value of the letters for which
//      `when` holds. Float: x + 0 is not x (-0), x - x is not 0 (inf), !(x < y) is not y <= x (NaN).
//   2. Int wraps. A rule that is wrong under wrap-around says so in `when`, as ranges that range analysis can prove.
//   3. The right side is never larger. For two spellings of the same size, only one direction is a rule.
//   4. No rule cleans up after another: if order matters, the pattern is wrong.
//   5. The derivative of both sides is the same, ties included: simplify runs before derive.
// Letters: i j d Int, k l Int but not a literal, x y w Float, z Float but not a literal, m n o Bool, a c Int literals,
// u v Float literals. A repeated letter matches equal expressions; + * && || & | ^ == != min max match in both orders.
// One test runs every rule against eval on random values.
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

constexpr std::array table{
    // Int arithmetic
    Rule{"i + 0", "i", ""},
    Rule{"i - 0", "i", ""},
    Rule{"i - i", "0", ""},
    Rule{"0 - i", "-i", ""},
    Rule{"-(-i)", "i", ""},
    Rule{"i + -j", "i - j", ""},
    Rule{"i - -j", "i + j", ""},
    Rule{"(i + a) + c", "i + (a + c)", ""},
    Rule{"(i - a) + c", "i + (c - a)", ""},
    Rule{"(i + a) - c", "i + (a - c)", ""},
    Rule{"(i - a) - c", "i - (a + c)", ""},
    Rule{"(i + j) - j", "i", ""},
    Rule{"(i - j) + j", "i", ""},
    Rule{"(i - j) - i", "-j", ""},
    Rule{"i - (i - j)", "j", ""},
    Rule{"i - (i + j)", "-j", ""},
    Rule{"(i + d) - (j + d)", "i - j", ""},
    Rule{"(i - d) - (j - d)", "i - j", ""},
    Rule{"(d - i) - (d - j)", "j - i", ""},
    Rule{"i * 0", "0", ""},
    Rule{"i * 1", "i", ""},
    Rule{"i * -1", "-i", ""},
    Rule{"(i * a) * c", "i * (a * c)", ""},
    Rule{"-i * -j", "i * j", ""},
    // Int division
    Rule{"i / 1", "i", ""},
    Rule{"i / 0", "0", ""},
    Rule{"0 / i", "0", ""},
    Rule{"i / -1", "-i", ""},
    Rule{"(i / a) / c", "i / (a * c)", "a > 0 && a <= 46340 && c > 0 && c <= 46340"},
    Rule{"i % 1", "0", ""},
    Rule{"i % 0", "0", ""},
    Rule{"i % -1", "0", ""},
    Rule{"0 % i", "0", ""},
    Rule{"(i % j) % j", "i % j", ""},
    Rule{"i % j", "i", "0 <= i && i < j"},
    Rule{"floordiv(i, 1)", "i", ""},
    Rule{"floordiv(i, 0)", "0", ""},
    Rule{"floordiv(0, i)", "0", ""},
    Rule{"floordiv(i, j)", "i / j", "0 <= i && 0 <= j"},
    Rule{"floormod(i, 1)", "0", ""},
    Rule{"floormod(i, 0)", "0", ""},
    Rule{"floormod(0, i)", "0", ""},
    Rule{"floormod(i, j)", "i % j", "0 <= i && 0 <= j"},
    // bits
    Rule{"i & i", "i", ""},
    Rule{"i & 0", "0", ""},
    Rule{"i & -1", "i", ""},
    Rule{"i | i", "i", ""},
    Rule{"i | 0", "i", ""},
    Rule{"i | -1", "-1", ""},
    Rule{"i ^ i", "0", ""},
    Rule{"i ^ 0", "i", ""},
    Rule{"~(~i)", "i", ""},
    Rule{"i << 0", "i", ""},
    Rule{"i >> 0", "i", ""},
    // least, greatest, absolute
    Rule{"min(i, i)", "i", ""},
    Rule{"max(i, i)", "i", ""},
    Rule{"min(x, x)", "x", ""},
    Rule{"max(x, x)", "x", ""},
    Rule{"min(i, j)", "i", "i <= j"},
    Rule{"max(i, j)", "i", "j <= i"},
    Rule{"max(min(i, j), i)", "i", ""},
    Rule{"min(max(i, j), i)", "i", ""},
    Rule{"clamp(i, j, d)", "i", "j <= i && i <= d"},
    Rule{"abs(i)", "i", "0 <= i"},
    Rule{"abs(i)", "-i", "i <= 0"},
    Rule{"abs(abs(i))", "abs(i)", ""},
    Rule{"abs(-i)", "abs(i)", ""},
    Rule{"abs(i - j) == 0", "i == j", ""},
    Rule{"abs(abs(x))", "abs(x)", ""},
    Rule{"abs(-x)", "abs(x)", ""},
    // Float arithmetic
    Rule{"x * 1.0f", "x", ""},
    Rule{"x * -1.0f", "-x", ""},
    Rule{"-x * -y", "x * y", ""},
    Rule{"x / 1.0f", "x", ""},
    Rule{"x / -1.0f", "-x", ""},
    // No larger only when 1 / v is exact: v is a power of two, 0, inf or NaN. Engines may flush 1 / 2^127 to 0.
    Rule{"x / v", "x * (1.0f / v)", "abs(v) != 1.7014118346046923e38f"},
    Rule{"x - 0.0f", "x", ""},
    Rule{"x + -0.0f", "x", ""},
    Rule{"x + -y", "x - y", ""},
    Rule{"x - -y", "x + y", ""},
    Rule{"-(-x)", "x", ""},
    // rounding and conversion
    Rule{"f32(x)", "x", ""},
    Rule{"i32(i)", "i", ""},
    Rule{"floor(f32(i))", "f32(i)", ""},
    Rule{"ceil(f32(i))", "f32(i)", ""},
    Rule{"round(f32(i))", "f32(i)", ""},
    Rule{"trunc(f32(i))", "f32(i)", ""},
    Rule{"floor(floor(x))", "floor(x)", ""},
    Rule{"ceil(ceil(x))", "ceil(x)", ""},
    Rule{"round(round(x))", "round(x)", ""},
    Rule{"trunc(trunc(x))", "trunc(x)", ""},
    Rule{"i32(f32(i))", "i", "-16777216 <= i && i <= 16777216"},
    Rule{"i32(trunc(x))", "i32(x)", ""},
    // comparisons: literals stand right, > and >= only before literals
    Rule{"a < k", "k > a", ""},
    Rule{"a <= k", "k >= a", ""},
    Rule{"a > k", "k < a", ""},
    Rule{"a >= k", "k <= a", ""},
    Rule{"k > l", "l < k", ""},
    Rule{"k >= l", "l <= k", ""},
    Rule{"u < z", "z > u", ""},
    Rule{"u <= z", "z >= u", ""},
    Rule{"u > z", "z < u", ""},
    Rule{"u >= z", "z <= u", ""},
    Rule{"i < i", "false", ""},
    Rule{"i <= i", "true", ""},
    Rule{"i == i", "true", ""},
    Rule{"i != i", "false", ""},
    Rule{"x < x", "false", ""},
    Rule{"x > x", "false", ""},
    Rule{"m == m", "true", ""},
    Rule{"m != m", "false", ""},
    Rule{"!(i < j)", "j <= i", ""},
    Rule{"!(i <= j)", "j < i", ""},
    Rule{"!(i > j)", "i <= j", ""},
    Rule{"!(i >= j)", "i < j", ""},
    Rule{"!(i == j)", "i != j", ""},
    Rule{"!(i != j)", "i == j", ""},
    Rule{"!(x == y)", "x != y", ""},
    Rule{"!(x != y)", "x == y", ""},
    Rule{"i - j == 0", "i == j", ""},
    Rule{"i - j != 0", "i != j", ""},
    Rule{"i - j < 0", "i < j", "0 <= i && 0 <= j"},
    Rule{"i - j <= 0", "i <= j", "0 <= i && 0 <= j"},
    Rule{"i - j > 0", "j < i", "0 <= i && 0 <= j"},
    Rule{"i - j >= 0", "j <= i", "0 <= i && 0 <= j"},
    Rule{"i - j < 1", "i <= j", "0 <= i && 0 <= j"},
    Rule{"i - j >= 1", "j < i", "0 <= i && 0 <= j"},
    Rule{"i - j > -1", "j <= i", "0 <= i && 0 <= j"},
    Rule{"i - j <= -1", "i < j", "0 <= i && 0 <= j"},
    Rule{"i + d == j + d", "i == j", ""},
    Rule{"i + d != j + d", "i != j", ""},
    Rule{"i - d == j - d", "i == j", ""},
    Rule{"i + a == c", "i == c - a", ""},
    Rule{"i - a == c", "i == c + a", ""},
    Rule{"i < j || i == j", "i <= j", ""},
    Rule{"i <= j && i != j", "i < j", ""},
    Rule{"i <= j && j <= i", "i == j", ""},
    Rule{"i < j && j < i", "false", ""},
    Rule{"i < j && j <= i", "false", ""},
    Rule{"i <= j || j <= i", "true", ""},
    Rule{"i < j || j <= i", "true", ""},
    Rule{"i < j && i <= j", "i < j", ""},
    Rule{"i < j || i <= j", "i <= j", ""},
    // logic
    Rule{"!(!m)", "m", ""},
    Rule{"m && true", "m", ""},
    Rule{"m && false", "false", ""},
    Rule{"m && m", "m", ""},
    Rule{"m && !m", "false", ""},
    Rule{"m || false", "m", ""},
    Rule{"m || true", "true", ""},
    Rule{"m || m", "m", ""},
    Rule{"m || !m", "true", ""},
    Rule{"m && (m || n)", "m", ""},
    Rule{"m || m && n", "m", ""},
    Rule{"m && (m && n)", "m && n", ""},
    Rule{"m || (m || n)", "m || n", ""},
    Rule{"m && (!m || n)", "m && n", ""},
    Rule{"m || !m && n", "m || n", ""},
    Rule{"!m && !n", "!(m || n)", ""},
    Rule{"!m || !n", "!(m && n)", ""},
    Rule{"m == true", "m", ""},
    Rule{"m == false", "!m", ""},
    Rule{"m != true", "!m", ""},
    Rule{"m != false", "m", ""},
    // choice
    Rule{"where(true, i, j)", "i", ""},
    Rule{"where(true, x, y)", "x", ""},
    Rule{"where(true, m, n)", "m", ""},
    Rule{"where(false, i, j)", "j", ""},
    Rule{"where(false, x, y)", "y", ""},
    Rule{"where(false, m, n)", "n", ""},
    Rule{"where(m, i, i)", "i", ""},
    Rule{"where(m, x, x)", "x", ""},
    Rule{"where(m, n, n)", "n", ""},
    Rule{"where(!m, i, j)", "where(m, j, i)", ""},
    Rule{"where(!m, x, y)", "where(m, y, x)", ""},
    Rule{"where(!m, n, o)", "where(m, o, n)", ""},
    Rule{"where(m, true, n)", "m || n", ""},
    Rule{"where(m, n, false)", "m && n", ""},
    Rule{"where(m, false, n)", "!m && n", ""},
    Rule{"where(m, n, true)", "!m || n", ""},
    Rule{"where(m, where(m, i, j), d)", "where(m, i, d)", ""},
    Rule{"where(m, where(m, x, y), w)", "where(m, x, w)", ""},
    Rule{"where(m, i, where(m, j, d))", "where(m, i, d)", ""},
    Rule{"where(m, x, where(m, y, w))", "where(m, x, w)", ""},
    Rule{"where(m, where(n, i, j), j)", "where(m && n, i, j)", ""},
    Rule{"where(m, where(n, x, y), y)", "where(m && n, x, y)", ""},
    Rule{"where(m, i, where(n, i, j))", "where(m || n, i, j)", ""},
    Rule{"where(m, x, where(n, x, y))", "where(m || n, x, y)", ""},
};

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
    p->names.reserve(table.size());
    for (const Rule& rule : table) {
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
    if (Expr next = literal_of(e)) return noted("literal arithmetic", e, next);
    if (Expr next = proven(e)) return noted("proven by its range", e, next);
    if (Expr next = sum_of(e)) return noted("a sum of no or one term", e, next);
    for (const Pattern& p : patterns().by_op[static_cast<std::size_t>(e->op)]) {
      Binding bound{};
      if (!match(p.from, e, bound)) continue;
      if (p.when && !range_(plug(p.when, bound, Tidy::Not)).is(1)) continue;
      // Compare sizes before rules run on the parts: x / v would otherwise try 1.0f / v by itself, forever.
      if (const auto size = plug(p.to, bound, Tidy::Literals)->size; size > e->size || (p.grows && size == too_large))
        continue;
      Expr next = plug(p.to, bound, Tidy::Wholly);
      if (!ir::same(next, e)) return noted(p.name, e, next);
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
    if (e->op == Op::Read || e->op == Op::Sum || e->op == Op::Random || e->op == Op::Custom) return nullptr;
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

  Expr noted(std::string_view rule, const Expr& from, const Expr& to) {
    if (log_) log_->push_back({rule, from, to});
    return to;
  }

  ir::Ranger range_;
  std::vector<Rewrite>* log_;
  ir::DigestMap<Expr> done_;  ///< the result for each node; a result maps to itself
};

std::span<const Rule> rules() { return table; }

Simplify::Simplify(const ir::Bounds& bounds) : simplifier_(std::make_unique<Simplifier>(bounds, nullptr)) {}
Simplify::~Simplify() = default;
ir::Expr Simplify::operator()(const ir::Expr& e) { return simplifier_->run(e); }
ir::Expr Simplify::topmost(const ir::Expr& e) { return simplifier_->reduce(e); }

ir::Expr simplify(const ir::Expr& e, const ir::Bounds& bounds, std::vector<Rewrite>* log) {
  return Simplifier(bounds, log).run(e);
}

}  // namespace attune::compiler

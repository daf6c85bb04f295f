// compiler/fold.cpp — a score split for the loop over pairs: terms that cancel, affine parts, bounds, and fields that
// are computed once per head, row or column
#include "compiler/fold.h"

#include <array>
#include <limits>

#include "compiler/simplify.h"

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op;

// A missing summand is null, which avoids adding a literal 0.
Expr add(const Expr& a, const Expr& b) { return a && b ? ir::op(Op::Add, a, b) : a ? a : b; }
Expr minus_of(const Expr& a) { return a ? ir::op(Op::Neg, a) : nullptr; }
Expr or_zero(const Expr& a) { return a ? a : ir::real(0); }

bool varies_along_row(const Expr& e) { return (e->uses & (ir::bit(Input::S) | ir::bit(Input::KV))) != 0; }

/// e == row + rest in real arithmetic.
struct Split {
  Expr row, rest;
};

/// e == scale * s + bias in real arithmetic; both null: not affine.
struct Affine {
  Expr scale, bias;
  bool is = true;
};

class Folder {
 public:
  explicit Folder(const ir::Bounds& bounds) : range_(bounds), tidy_(bounds) {}

  Fold run(const Expr& score) {
    Fold fold;
    const Affine affine = affine_in_s(score);
    fold.affine = affine.is && affine.scale;
    const Split split = split_of(fold.affine ? or_zero(affine.bias) : score);
    fold.row = tidy_(or_zero(split.row));
    if (fold.affine) {
      fold.scale = tidy_(affine.scale);
      fold.bias = tidy_(or_zero(split.rest));
      fold.core = tidy_.topmost(ir::op(Op::Mul, fold.scale, ir::input(Input::S)));
      if (split.rest) fold.core = tidy_.topmost(add(fold.core, fold.bias));
    } else {
      fold.core = tidy_(or_zero(split.rest));
    }
    fold.range = range_(fold.core);
    return fold;
  }

 private:
  Affine affine_in_s(const Expr& root) {
    ir::DigestMap<Affine> known;
    known.reserve(ir::room_for(*root));
    for (const Expr& e : ir::in_order(std::span(&root, 1), ir::SumBodies::Skip)) {
      const auto of = [&](std::size_t i) { return known.at(e->args[i]->digest); };
      known.emplace(e->digest, ir::uses(e, Input::S) ? affine_node(e, of) : Affine{nullptr, e});
    }
    return known.at(root->digest);
  }

  /// True if the product or quotient of two factors of s is outside f32, although both factors are inside. They must
  /// then stay separate: s / 1e-20f / 1e-20f is 0 at s = 0, but s * inf is NaN. Factors of unknown range, such as
  /// captures, count as inside.
  bool leaves_f32(Op op, const Expr& scale, const Expr& by) {
    const auto normal = [&](const Expr& e) {
      constexpr double least = std::numeric_limits<float>::min(), most = std::numeric_limits<float>::max();
      const ir::Interval r = range_(e);
      return !r.nan && ((r.lo >= least && r.hi <= most) || (r.lo >= -most && r.hi <= -least));
    };
    return normal(scale) && normal(by) && !normal(ir::op(op, scale, by));
  }

  template <class Of>
  Affine affine_node(const Expr& e, Of of) {
    const Affine none{nullptr, nullptr, false};
    if (e->op == Op::Input) return {ir::real(1), nullptr};
    if (e->op == Op::Custom) return of(0);
    if (e->op == Op::Neg) {
      const Affine a = of(0);
      return a.is ? Affine{minus_of(a.scale), minus_of(a.bias)} : none;
    }
    if (e->op == Op::Add || e->op == Op::Sub) {
      const Affine a = of(0), b = of(1);
      if (!a.is || !b.is) return none;
      const bool minus = e->op == Op::Sub;
      return {add(a.scale, minus ? minus_of(b.scale) : b.scale), add(a.bias, minus ? minus_of(b.bias) : b.bias)};
    }
    if (e->op == Op::Mul || e->op == Op::Div) {
      // The s-free side scales the other; s in a divisor or in both factors is not affine.
      const bool left = !ir::uses(e->args[1], Input::S);
      if (!left && (e->op == Op::Div || ir::uses(e->args[0], Input::S))) return none;
      const Affine a = of(left ? 0 : 1);
      const Expr& by = e->args[left ? 1 : 0];
      if (!a.is || (a.scale && leaves_f32(e->op, a.scale, by))) return none;
      return {a.scale ? ir::op(e->op, a.scale, by) : nullptr, a.bias ? ir::op(e->op, a.bias, by) : nullptr};
    }
    if (e->op == Op::Where && !ir::uses(e->args[0], Input::S)) {
      // Only if both sides have the same scale: with 0 * s, a NaN of the side that is not taken would reach the result.
      const Affine a = of(1), b = of(2);
      if (!a.is || !b.is || !a.scale || !b.scale || !ir::same(a.scale, b.scale)) return none;
      return {a.scale, ir::op(Op::Where, e->args[0], or_zero(a.bias), or_zero(b.bias))};
    }
    return none;
  }

  Split split_of(const Expr& root) {
    ir::DigestMap<Split> known;
    known.reserve(ir::room_for(*root));
    for (const Expr& e : ir::in_order(std::span(&root, 1), ir::SumBodies::Skip)) {
      if (e->type != ir::Type::F32) continue;
      const auto of = [&](std::size_t i) { return known.at(e->args[i]->digest); };
      known.emplace(e->digest, varies_along_row(e) ? split_node(e, of) : Split{e, nullptr});
    }
    return known.at(root->digest);
  }

  template <class Of>
  Split split_node(const Expr& e, Of of) {
    const Split whole{nullptr, e};
    if (e->op == Op::F32) return e->args[0]->type == ir::Type::I32 ? split_positions(e) : whole;
    if (e->op == Op::Neg) {
      const Split a = of(0);
      return a.row ? Split{minus_of(a.row), minus_of(a.rest)} : whole;
    }
    if (e->op == Op::Add || e->op == Op::Sub) {
      const Split a = of(0), b = of(1);
      if (!a.row && !b.row) return whole;
      const bool minus = e->op == Op::Sub;
      return {add(a.row, minus ? minus_of(b.row) : b.row), add(a.rest, minus ? minus_of(b.rest) : b.rest)};
    }
    if (e->op == Op::Mul || e->op == Op::Div) {
      const bool left = !varies_along_row(e->args[1]);
      if (!left && (e->op == Op::Div || varies_along_row(e->args[0]))) return whole;
      const Split a = of(left ? 0 : 1);
      const Expr& by = e->args[left ? 1 : 0];
      if (!a.row) return whole;
      return {ir::op(e->op, a.row, by), a.rest ? ir::op(e->op, a.rest, by) : nullptr};
    }
    if (e->op == Op::Where && !varies_along_row(e->args[0])) {
      const Split a = of(1), b = of(2);
      if (!a.row && !b.row) return whole;
      const auto choice = [&](const Expr& x, const Expr& y) -> Expr {
        return x || y ? ir::op(Op::Where, e->args[0], or_zero(x), or_zero(y)) : nullptr;
      };
      return {choice(a.row, b.row), choice(a.rest, b.rest)};
    }
    return whole;
  }

  /// f32(kv - q + c) == f32(kv - origin) - f32(q - origin - c), if no addition wraps.
  Split split_positions(const Expr& e) {
    const Split whole{nullptr, e};
    Expr along, across;  // along: the terms with kv; across: the others
    std::vector<std::pair<Expr, bool>> terms{{e->args[0], false}};
    while (!terms.empty()) {
      const auto [term, minus] = terms.back();
      terms.pop_back();
      if (!varies_along_row(term) || (term->op != Op::Add && term->op != Op::Sub)) {
        if (varies_along_row(term) && ir::uses(term, Input::Q)) return whole;
        Expr& to = varies_along_row(term) ? along : across;
        to = to ? ir::op(minus ? Op::Sub : Op::Add, to, term) : minus ? ir::op(Op::Neg, term) : term;
        continue;
      }
      if (wraps(term)) return whole;
      terms.emplace_back(term->args[1], minus != (term->op == Op::Sub));
      terms.emplace_back(term->args[0], minus);
    }
    if (!across || !ir::uses(across, Input::Q)) return whole;
    const Expr origin = ir::input(Input::Origin);
    // The origin is a position: it takes the sign of the key's.
    const bool falls = along->op == Op::Neg;
    const Expr to_key = ir::op(falls ? Op::Add : Op::Sub, along, origin);
    const Expr to_query = ir::op(falls ? Op::Sub : Op::Add, across, origin);
    if (may_wrap(to_key) || may_wrap(to_query)) return whole;
    return {ir::op(Op::F32, to_query), ir::op(Op::F32, to_key)};
  }

  /// True if any of the sums and differences at the top of `e` may wrap. Checks all of them, since reordered terms may
  /// have larger partial sums.
  bool may_wrap(const Expr& e) {
    std::vector<Expr> todo{e};
    while (!todo.empty()) {
      const Expr term = todo.back();
      todo.pop_back();
      if (term->op == Op::Neg && range_(term->args[0]).lo == -0x1p31) return true;
      if (term->op != Op::Add && term->op != Op::Sub) continue;
      if (wraps(term)) return true;
      todo.insert(todo.end(), {term->args[0], term->args[1]});
    }
    return false;
  }

  bool wraps(const Expr& sum) {
    const ir::Interval a = range_(sum->args[0]), b = range_(sum->args[1]);
    const double low = sum->op == Op::Add ? a.lo + b.lo : a.lo - b.hi;
    const double high = sum->op == Op::Add ? a.hi + b.hi : a.hi - b.lo;
    return low < -0x1p31 || high > 0x1p31 - 1;
  }

  ir::Ranger range_;
  Simplify tidy_;
};

}  // namespace

Fold fold(const ir::Expr& score, const ir::Bounds& bounds) { return Folder(bounds).run(score); }

namespace {

using ir::Expr, ir::Input, ir::Op;

class Hoist {
 public:
  Levels run(std::span<const Expr> roots) {
    for (const Expr& root : roots) {
      const Expr split = ir::rebuild(root,
                                     [&](const Expr& node, std::span<const Expr> args) { return visit(node, args); });
      levels_.element.push_back(varies(split) == Vary::Element ? split : lift(split));
    }
    return std::move(levels_);
  }

 private:
  Expr visit(const Expr& node, std::span<const Expr> args) {
    // Keep the body of a sum whole: it belongs to one loop.
    if (node->op == Op::Sum) return nullptr;
    const Vary here = varies(node);
    std::array<Expr, ir::max_args> lifted;
    for (std::size_t i = 0; i < args.size(); ++i) lifted[i] = varies(args[i]) < here ? lift(args[i]) : args[i];
    return ir::with_args(node, {lifted.data(), args.size()});
  }

  Expr lift(const Expr& e) {
    const bool free_of_charge = e->op == Op::Literal || e->op == Op::Input || e->op == Op::Param || e->op == Op::Field;
    if (free_of_charge || e->free) return e;
    const auto found = fields_.find(e->digest);
    if (found != fields_.end()) return found->second;
    std::vector<Expr>& list = list_of(varies(e));
    list.push_back(e);
    const Expr field = ir::field(level_of(varies(e)), static_cast<std::uint32_t>(list.size() - 1), e->type);
    fields_.emplace(e->digest, field);
    return field;
  }

  std::vector<Expr>& list_of(Vary vary) {
    return vary == Vary::Head ? levels_.head : vary == Vary::Row ? levels_.row : levels_.col;
  }
  static ir::Level level_of(Vary vary) {
    return vary == Vary::Head ? ir::Level::Head : vary == Vary::Row ? ir::Level::Row : ir::Level::Col;
  }

  Levels levels_;
  ir::DigestMap<Expr> fields_;
};

}  // namespace

Vary varies(const Expr& e) {
  const auto any = [&](std::initializer_list<Input> inputs) {
    for (const Input i : inputs)
      if (ir::uses(e, i)) return true;
    return false;
  };
  const bool row = any({Input::Q}), col = any({Input::KV});
  if (any({Input::S, Input::P}) || (row && col)) return Vary::Element;
  return row ? Vary::Row : col ? Vary::Col : Vary::Head;
}

Levels level(std::span<const ir::Expr> roots) { return Hoist().run(roots); }

}  // namespace attune::compiler

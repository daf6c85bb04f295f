// compiler/level.cpp — makes fields of the largest sub-expressions that vary less than their users
#include "compiler/level.h"

#include <array>

namespace attune::compiler {
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

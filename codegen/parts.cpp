// codegen/parts.cpp — a Mod's expressions as CPU kernels take them: split by level, with what the forward must know of
// them
#include "codegen/parts.h"

#include <array>

#include "compiler/level.h"

namespace attune::codegen {

using ir::Expr, ir::Input, ir::Op;

bool linear_in_p(const Expr& e) {
  const auto free_of_p = [](const Expr& x) { return !ir::uses(x, Input::P); };
  if (e->op == Op::Input) return e->bits == static_cast<std::uint32_t>(Input::P);
  if (ir::is_literal(e, 0)) return true;
  const auto args = e->arguments();
  switch (e->op) {
    case Op::Mul: return (free_of_p(args[0]) && linear_in_p(args[1])) || (linear_in_p(args[0]) && free_of_p(args[1]));
    case Op::Div: return linear_in_p(args[0]) && free_of_p(args[1]);
    case Op::Neg: return linear_in_p(args[0]);
    case Op::Add:
    case Op::Sub: return linear_in_p(args[0]) && linear_in_p(args[1]);
    case Op::Where: return free_of_p(args[0]) && linear_in_p(args[1]) && linear_in_p(args[2]);
    default: return false;  // what is not known to be linear takes the way that is always right
  }
}

ForwardParts forward_parts(const compiler::Mod& mod) {
  ForwardParts out;
  const std::array roots{mod.fold.core, mod.mask, mod.prob, mod.fold.row};
  out.levels = compiler::level(roots);
  out.masked = !ir::is_literal(mod.mask, 1);
  out.has_prob = mod.prob->op != Op::Input;
  out.prob_linear = linear_in_p(mod.prob);
  out.has_row_term = !ir::is_literal(mod.fold.row, 0);
  return out;
}

}  // namespace attune::codegen

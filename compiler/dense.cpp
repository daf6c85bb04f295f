// compiler/dense.cpp — dense biases
#include "compiler/dense.h"

#include <algorithm>

#include "compiler/level.h"

namespace attune::compiler {

using ir::Expr, ir::Input, ir::Op;

bool is_dense(const Expr& read) {
  if (read->op != Op::Read || read->arity < 2 || varies(read) != Vary::Element) return false;
  const Expr& last = read->args[read->arity - 1U];
  const auto along_row = [](const Expr& e) {
    return !e->random && !e->free && !ir::uses(e, Input::Origin) && !ir::uses(e, Input::S) &&
           (varies(e) == Vary::Head || varies(e) == Vary::Row);
  };
  return last->op == Op::Input && last->bits == static_cast<std::uint32_t>(Input::KV) &&
         std::ranges::all_of(read->arguments().first(read->arity - 1U), along_row);
}

std::optional<std::uint32_t> dense_slot(const Expr& e, const Mod& mod) {
  for (const Expr& node : ir::in_order(e)) {
    if (!is_dense(node)) continue;
    const DType type = mod.captures[node->bits].dtype;
    if (type == DType::f32 || type == DType::f16 || type == DType::bf16) return node->bits;
  }
  return std::nullopt;
}

}  // namespace attune::compiler

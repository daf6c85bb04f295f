// compiler/bind.cpp — coordinates, lengths and parameters replaced in all expressions of a Mod at once
#include "compiler/bind.h"

#include <attune/error.h>

namespace attune::compiler {

using ir::bit;

Mod bind(Mod mod, const Binding& binding) {
  ir::DigestMap<ir::Expr> by;
  std::uint32_t moved = 0;
  for (const auto& [which, value] : binding.inputs) {
    if (value->type != ir::type_of(which)) throw Bug("an input is bound to a value of another type");
    by.emplace(ir::input(which)->digest, value);
    moved |= bit(which);
  }
  for (const auto& [slot, value] : binding.params) {
    const ir::Type type = mod.params.at(slot).type;
    by.emplace(ir::param(slot, type)->digest, ir::literal(type, value));
  }
  constexpr std::uint32_t drawn_by = bit(ir::Input::B) | bit(ir::Input::H) | bit(ir::Input::Q) | bit(ir::Input::KV);
  for (ir::Expr* root : {&mod.score, &mod.mask, &mod.prob, &mod.sink}) {
    if (!*root) continue;
    if ((*root)->random && (moved & drawn_by)) throw Bug("coordinates are moved under random, which draws by them");
    *root = ir::substitute(*root, by);
  }
  return mod;
}

}  // namespace attune::compiler

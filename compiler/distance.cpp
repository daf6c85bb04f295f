// compiler/distance.cpp — how values move as q and kv move together
#include "compiler/distance.h"

#include <algorithm>
#include <optional>

namespace attune::compiler {
namespace {

using ir::Expr, ir::Input, ir::Op;

/// The increase of an Int, modulo 2^32, when q and kv both increase by 1; 0 if the value stays the same. None: the
/// increase is not known to be constant.
using Rise = std::optional<std::uint32_t>;

bool is_position(const Expr& e) {
  return e->op == Op::Input &&
         (e->bits == static_cast<std::uint32_t>(Input::Q) || e->bits == static_cast<std::uint32_t>(Input::KV));
}

Rise of_input(const Expr& e) {
  if (is_position(e)) return 1;
  const auto which = static_cast<Input>(e->bits);
  const bool stays = which == Input::B || which == Input::H || which == Input::QLen || which == Input::KVLen;
  return stays ? Rise(0) : std::nullopt;
}

/// The Rise of an operation with at least one argument that moves.
Rise of_moving(const Expr& e, const std::array<std::uint32_t, ir::max_args>& rises) {
  const bool alike = rises[0] == rises[1];
  // Positions are far from wrapping; sums and products of positions need not be.
  const bool positions = alike && is_position(e->args[0]) && e->arity == 2 && is_position(e->args[1]);
  switch (e->op) {
    case Op::Add: return rises[0] + rises[1];
    case Op::Sub: return rises[0] - rises[1];
    case Op::Neg: return 0 - rises[0];
    case Op::Mul:
      for (const std::size_t i : {0u, 1u})
        if (ir::is_literal(e->args[i]))
          return rises[1 - i] * static_cast<std::uint32_t>(static_cast<std::int64_t>(ir::literal_value(*e->args[i])));
      return std::nullopt;
    case Op::Eq:
    case Op::Ne: return alike ? Rise(0) : std::nullopt;
    case Op::Lt:
    case Op::Le:
    case Op::Gt:
    case Op::Ge: return positions ? Rise(0) : std::nullopt;
    case Op::Min:
    case Op::Max: return positions ? Rise(rises[0]) : std::nullopt;
    case Op::Where: return rises[0] == 0 && rises[1] == rises[2] ? Rise(rises[1]) : std::nullopt;
    default: return std::nullopt;
  }
}

}  // namespace

bool by_distance(const Expr& e) {
  if (e->random || ir::uses(e, Input::S) || ir::uses(e, Input::P)) return false;
  ir::DigestMap<Rise> known;
  for (const Expr& node : ir::in_order(e)) {
    Rise rise = 0;
    if (node->op == Op::Input) {
      rise = of_input(node);
    } else {
      std::array<std::uint32_t, ir::max_args> rises{};
      bool moves = false;
      for (std::size_t i = 0; rise && i < node->arity; ++i) {
        rise = known.at(node->args[i]->digest);
        rises[i] = rise.value_or(0);
        moves |= rises[i] != 0;
      }
      if (rise) rise = moves ? of_moving(node, rises) : Rise(0);
    }
    known.emplace(node->digest, rise);
  }
  return known.at(e->digest) == 0;
}

}  // namespace attune::compiler

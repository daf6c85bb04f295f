// compiler/distance.cpp — scores that are one table: dense biases, an element for each pair, and expressions of q - kv
// alone
#include "compiler/distance.h"

#include <algorithm>
#include <optional>

#include "compiler/fold.h"

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

std::vector<Expr> copied_reads(const Expr& e, const Mod& mod, const std::function<bool(std::uint32_t)>& may) {
  std::vector<Expr> out;
  for (const Expr& node : ir::in_order(e)) {
    if (!is_dense(node) || !may(node->bits)) continue;
    const DType type = mod.captures[node->bits].dtype;
    if (out.empty() && type == DType::f32) return {node};
    if (type == DType::f16 || type == DType::bf16) out.push_back(node);
    if (out.size() == 2) break;
  }
  return out;
}

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

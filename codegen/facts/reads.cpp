// codegen/facts/reads.cpp — which reads of captured tensors a GPU kernel may leave unclamped
#include "codegen/facts/reads.h"

#include <algorithm>

#include "compiler/distance.h"
#include "compiler/fold.h"

namespace attune::codegen {
namespace {

using compiler::Vary, compiler::varies;
using ir::Expr, ir::Input, ir::Op;

/// True for a sum of q, kv and per-head values. q and kv appear only a few times, so no index wraps within a tile. A
/// product with q or kv is already a field of a row or column, and a tile's corners say nothing about fields. Nor is a
/// sum's index known outside of the sum.
bool is_linear(const Expr& e) {
  if (e->free) return false;
  if (varies(e) == Vary::Head) return !ir::uses(e, Input::Origin);
  if (e->op == Op::Input) return ir::uses(e, Input::Q) || ir::uses(e, Input::KV);
  if (e->op == Op::Neg) return is_linear(e->args[0]);
  return (e->op == Op::Add || e->op == Op::Sub) && is_linear(e->args[0]) && is_linear(e->args[1]);
}

}  // namespace

std::vector<Expr> linear_reads(std::span<const Expr> roots) {
  std::vector<Expr> out;
  for (const Expr& e : ir::in_order(roots)) {
    if (e->op != Op::Read || varies(e) != Vary::Element) continue;
    for (std::size_t i = 0; i < e->arity; ++i)
      if (!is_linear(e->args[i])) return {};
    out.push_back(e);
  }
  return out;
}

std::vector<Expr> copied_reads(const Expr& score, const compiler::LoweredMod& lowered, bool backward) {
  if (!backward)
    return compiler::copied_reads(score, lowered.mod,
                                  [&](std::uint32_t slot) { return lowered.mod.captures[slot].dtype != DType::f32; });
  // A call's key has asked about the rows of these tensors alone, in this order.
  const std::vector<Expr> nodes = ir::in_order(score);
  std::vector<Expr> out;
  for (const std::uint32_t slot : lowered.dense) {
    const auto found = std::ranges::find_if(nodes, [&](const Expr& e) {
      return compiler::is_dense(e) && e->bits == slot && std::ranges::find(out, e) == out.end();
    });
    if (found == nodes.end()) break;
    out.push_back(*found);
  }
  return out;
}

int count_reads(const Expr& e) {
  const auto is_read = [](const Expr& n) { return n->op == Op::Read && varies(n) == Vary::Element; };
  const std::vector<Expr> nodes = ir::in_order(e);
  return static_cast<int>(std::ranges::count_if(nodes, is_read));
}

Expr distant_part(const Expr& score) {
  // Exact tanhs have tiles of their own, which gain more than one read costs.
  const int least = only_tanh(score) ? 2 : 1;
  const auto is_one = [least](const Expr& e) {
    if (e->type != ir::Type::F32 || e->free || varies(e) != Vary::Element) return false;
    const std::vector<Expr> nodes = ir::in_order(e);
    const auto of_head = [](const Expr& n) { return n->op != Op::Field || ir::field_level(*n) == ir::Level::Head; };
    return count_reads(e) >= least && std::ranges::all_of(nodes, of_head) && compiler::by_distance(e);
  };
  // In order, so the last one found lies within no other.
  Expr out;
  for (const Expr& e : ir::in_order(score))
    if (is_one(e)) out = e;
  return out;
}

Expr only_tanh(const Expr& score) {
  const std::vector<Expr> nodes = ir::in_order(score);
  const auto is_one = [](const Expr& e) { return e->op == Op::Tanh && ir::uses(e, Input::S); };
  const auto first = std::ranges::find_if(nodes, is_one);
  if (first == nodes.end() || (*first)->free) return nullptr;
  ir::DigestMap<Expr> by;
  by.emplace((*first)->digest, ir::real(0));
  return ir::uses(ir::substitute(score, by), Input::S) ? nullptr : *first;
}

bool has_linear_line(const Expr& read) {
  return std::ranges::all_of(read->arguments().first(read->arity - 1U), is_linear);
}

bool has_unaligned_rows(const Tensor& t, std::int64_t keys) {
  const auto columns = static_cast<std::size_t>(t.rank) - 1;
  const std::int64_t unit = 16 / static_cast<std::int64_t>(size_of(t.dtype));
  bool aligned = t.strides[columns] == 1 && reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 &&
                 t.shape[columns] % unit == 0 && t.shape[columns] >= keys;
  for (std::size_t d = 0; d < columns; ++d) aligned = aligned && (t.shape[d] == 1 || t.strides[d] % unit == 0);
  return !aligned;
}

bool ask_columns(std::span<const Expr> roots) {
  const std::vector<Expr> nodes = ir::in_order(roots);
  return std::ranges::any_of(nodes,
                             [](const Expr& e) { return e->op == Op::Field && ir::field_level(*e) == ir::Level::Col; });
}

bool read_captures(std::span<const Expr> roots) {
  const std::vector<Expr> nodes = ir::in_order(roots);
  return std::any_of(nodes.begin(), nodes.end(), [](const Expr& e) { return e->op == Op::Read; });
}

}  // namespace attune::codegen

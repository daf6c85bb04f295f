// codegen/reads.cpp — which reads of captured tensors a kernel for GPUs takes as they come, and which it clamps
#include "codegen/reads.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>

#include "compiler/level.h"

namespace attune::codegen {
namespace {

using compiler::Vary, compiler::varies;
using ir::Expr, ir::Input, ir::Op;

/// A tile has fewer than 2^9 queries and keys, and no index within one wraps around.
constexpr double most_factor = 1024;

struct Factors {
  double q, kv;
};

std::optional<Factors> factors(const Expr& e) {
  if (varies(e) == Vary::Head && !ir::uses(e, Input::Origin)) return Factors{0, 0};
  if (e->op == Op::Input && ir::uses(e, Input::Q)) return Factors{1, 0};
  if (e->op == Op::Input && ir::uses(e, Input::KV)) return Factors{0, 1};
  const bool adds = e->op == Op::Add || e->op == Op::Sub, times = e->op == Op::Mul && ir::is_literal(e->args[1]);
  if (!adds && !times && e->op != Op::Neg) return std::nullopt;
  const auto x = factors(e->args[0]);
  if (!x) return std::nullopt;
  Factors out{-x->q, -x->kv};
  if (times) {
    const double by = ir::literal_value(*e->args[1]);
    out = {x->q * by, x->kv * by};
  } else if (adds) {
    const auto y = factors(e->args[1]);
    if (!y) return std::nullopt;
    const double sign = e->op == Op::Add ? 1 : -1;
    out = {x->q + sign * y->q, x->kv + sign * y->kv};
  }
  if (std::abs(out.q) > most_factor || std::abs(out.kv) > most_factor) return std::nullopt;
  return out;
}

}  // namespace

std::vector<Expr> linear_reads(std::span<const Expr> roots) {
  std::vector<Expr> out;
  for (const Expr& e : ir::in_order(roots)) {
    if (e->op != Op::Read || varies(e) != Vary::Element) continue;
    for (std::size_t i = 0; i < e->arity; ++i)
      if (!factors(e->args[i])) return {};
    out.push_back(e);
  }
  return out;
}

bool read_captures(std::span<const Expr> roots) {
  const std::vector<Expr> nodes = ir::in_order(roots);
  return std::any_of(nodes.begin(), nodes.end(), [](const Expr& e) { return e->op == Op::Read; });
}

bool reach_far(std::span<const Tensor> captures) {
  return std::any_of(captures.begin(), captures.end(), [](const Tensor& t) {
    double reach = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d)
      reach += static_cast<double>(std::max<std::int64_t>(t.shape[d] - 1, 0)) *
               std::abs(static_cast<double>(t.strides[d]));
    return reach > static_cast<double>(std::numeric_limits<std::int32_t>::max());
  });
}

}  // namespace attune::codegen

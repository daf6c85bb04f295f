// runtime/engines/cuda/stored_ds.cpp — the gradients of dense biases in a backward whose kernel stores dS
#include "runtime/engines/cuda/stored_ds.h"

#include <algorithm>
#include <array>

#include "codegen/ceil_div.h"
#include "codegen/facts/ds_term.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {
namespace {

using codegen::Along;

std::int64_t bytes_of(const Tensor& t) { return t.size() * static_cast<std::int64_t>(size_of(t.dtype)); }

/// True if a tensor's elements lie in one run of whole words.
bool is_clearable(const Tensor& t) {
  std::int64_t step = 1;
  for (auto d = static_cast<std::size_t>(t.rank); d-- > 0; step *= t.shape[d])
    if (t.shape[d] > 1 && t.strides[d] != step) return false;
  return bytes_of(t) % static_cast<std::int64_t>(sizeof(unsigned)) == 0;
}

/// True if another of the tensor's slots has a gradient too.
bool has_other_terms(const compiler::Mod& mod, const Captured& of, std::uint32_t capture) {
  const auto adds = [&](const compiler::Scatter& term) {
    return term.capture != capture && std::ranges::find(of.slots, term.capture) != of.slots.end();
  };
  return std::ranges::any_of(std::array{&mod.dscore, &mod.dprob, &mod.dsink},
                             [&](const compiler::Derivative* one) { return std::ranges::any_of(one->captures, adds); });
}

/// The pairs of a call, as [batch, head, position of the query, key].
std::array<std::int64_t, 4> pairs_of(const compiler::Problem& p) {
  return {p.batch, p.q_heads, p.q_offset + p.q.length, p.kv.length};
}

/// How the term's gradient is made of dS; none if it cannot be.
std::optional<DenseGradient> dense_gradient(const Call& of, std::span<const Captured> captured,
                                            const codegen::DsTerm& term) {
  const compiler::Problem& p = of.problem;
  const auto its = std::ranges::find_if(
      captured, [&](const Captured& one) { return std::ranges::find(one.slots, term.capture) != one.slots.end(); });
  if (its == captured.end() || has_other_terms(of.mod.mod, *its, term.capture)) return {};

  const Tensor& to = *its->into;
  DenseGradient out{
      .of = &*its, .slot = term.capture, .as_pairs = {to.data, to.dtype, {1, 1, 1, 1}, {0, 0, 0, 0}, to.device}};
  out.groups = {std::max(p.batch, std::int64_t{1}), std::max(p.q_heads, std::int64_t{1}), 1, 1};
  for (std::size_t d = 0; d < term.along.size(); ++d) {
    const auto [what, by] = term.along[d];
    if (what == Along::none) {
      // The other elements along such a dimension are 0; sum_ds.cuh does not write them.
      if (to.shape[d] != 1) return {};
      continue;
    }
    const auto at = static_cast<std::size_t>(what) - 1;
    out.groups[at] = by;
    out.as_pairs.shape[at] = to.shape[d];
    out.as_pairs.strides[at] = to.strides[d];
  }
  // Reads beyond a tensor's end are of its last element, which then has the gradients of several pairs.
  for (std::size_t d = 0; d < 4; ++d)
    if (out.as_pairs.shape[d] < ceil_div(pairs_of(p)[d], out.groups[d])) return {};
  return out;
}

}  // namespace

std::optional<DenseGradients> dense_gradients(const Call& of, std::span<const Captured> captured,
                                              const LoadedKernel& kernel, std::int64_t kv_tiles,
                                              std::int64_t ds_bytes) {
  const compiler::Problem& p = of.problem;
  const Tensor& q = of.backward().q;
  DenseGradients out;
  out.cleared = kernel.skips;
  for (const codegen::DsTerm& term : codegen::ds_terms(of.mod.mod, wanted_of(of, captured))) {
    std::optional<DenseGradient> one = dense_gradient(of, captured, term);
    if (!one) return {};
    const Tensor& to = *one->of->into;
    const bool same = p.q_offset == 0 && one->groups[0] == 1 && one->groups[1] == 1 &&
                      std::ranges::equal(pairs_of(p), std::span(one->as_pairs.shape).first(4));
    one->is_ds = !out.is_gradient && same && !term.factor && to.dtype == q.dtype && has_boxes(one->as_pairs) &&
                 (!out.cleared || is_clearable(to));
    if (one->is_ds) out.is_gradient = true, out.tiles = kv_tiles, out.ds = one->as_pairs;
    out.each.push_back(*one);
  }
  if (out.is_gradient) return out;
  const std::int64_t n = kernel.choice.plan.tile.n,
                     of_tile = p.batch * p.q_heads * p.q.length * n * static_cast<std::int64_t>(size_of(q.dtype));
  out.tiles = std::clamp(ds_bytes / std::max<std::int64_t>(of_tile, 1), std::int64_t{1}, kv_tiles);
  out.ds = {nullptr, q.dtype, {p.batch, p.q_heads, p.q.length, out.tiles * n}, {}, q.device};
  return out;
}

bool DenseGradients::has(const Captured& one) const {
  return std::ranges::find(each, &one, &DenseGradient::of) != each.end();
}

StoredDs DenseGradients::stored(const codegen::KernelPlan& plan, std::int64_t first_tile) const {
  return {.map = boxes_of(ds, plan.tile.m),
          .ds = strided(ds, compiler::Layout::dense),
          .first_tile = static_cast<int>(first_tile)};
}

std::vector<SumOfDs> DenseGradients::sums() const {
  std::vector<SumOfDs> out;
  for (const DenseGradient& one : each) {
    const auto& shape = one.as_pairs.shape;
    out.push_back({.is_ds = one.is_ds,
                   .to = {strided(one.as_pairs, compiler::Layout::dense), cuda::stored(one.as_pairs.dtype)},
                   .batch = {static_cast<int>(shape[0]), static_cast<int>(one.groups[0])},
                   .heads = {static_cast<int>(shape[1]), static_cast<int>(one.groups[1])},
                   .rows = static_cast<int>(shape[2]),
                   .columns = static_cast<int>(shape[3])});
  }
  return out;
}

}  // namespace attune::runtime::cuda

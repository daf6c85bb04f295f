// runtime/engines/cuda/stored_ds.cpp — the gradients of dense biases in a backward whose kernel stores dS
#include "runtime/engines/cuda/stored_ds.h"

#include <algorithm>
#include <array>

#include "codegen/ceil_div.h"
#include "codegen/facts/ds_term.h"
#include "runtime/engines/cuda/operands.h"

namespace attune::runtime::cuda {

DenseGradients dense_gradients(const Call& of, std::span<const Captured> captured, const LoadedKernel& kernel,
                               std::int64_t q_tiles, std::int64_t ds_bytes) {
  const compiler::Problem& p = of.problem;
  const Tile& tile = kernel.choice.plan.tile;
  const std::int64_t kv_tiles = ceil_div(p.kv.length, std::int64_t{tile.n});
  const Tensor& q = of.backward().q;
  DenseGradients out;
  for (const codegen::DsTerm& term : codegen::ds_terms(of.mod.mod, wanted_of(of, captured))) {
    std::optional<DenseGradient> one = dense_gradient(of, captured, term);
    if (!one) throw Bug("a kernel stores dS for a gradient that is not made of it");
    const Tensor& to = *one->of->into;
    one->is_ds = !out.is_gradient && !p.q.packed() && p.q_offset == 0 && one->one_each && !term.factor &&
                 to.dtype == q.dtype && has_boxes(one->as_pairs);
    if (one->is_ds) out.is_gradient = true, out.tiles = kv_tiles, out.ds = one->as_pairs;
    out.each.push_back(*one);
  }
  if (out.is_gradient) return out;
  std::vector<std::int64_t> rows{p.batch, p.q_heads, p.q.length};
  if (p.q.packed()) rows = {1, 1, q_tiles * tile.m};
  const std::int64_t of_tile = rows[0] * rows[1] * rows[2] * tile.n * static_cast<std::int64_t>(size_of(q.dtype));
  out.tiles = std::clamp(ds_bytes / std::max<std::int64_t>(of_tile, 1), std::int64_t{1},
                         std::max<std::int64_t>(kv_tiles, 1));
  out.ds = {nullptr, q.dtype, {rows[0], rows[1], rows[2], out.tiles * tile.n}, {}, q.device};
  return out;
}

bool DenseGradients::has(const Captured& one) const {
  return std::ranges::find(each, &one, &DenseGradient::of) != each.end();
}

StoredDs DenseGradients::stored(const codegen::KernelPlan& plan, std::int64_t first_tile) const {
  return {.map = boxes_of(ds, plan.tile.m),
          .ds = strided(ds, compiler::Layout::dense),
          .first_tile = static_cast<int>(first_tile),
          .tiles = static_cast<int>(tiles)};
}

std::vector<SumOfDs> DenseGradients::sums() const {
  std::vector<SumOfDs> out;
  const auto groups = [](const DenseGradient& of, std::size_t d) {
    return SumOfDs::Groups{static_cast<int>(of.as_pairs.shape[d]), static_cast<int>(of.groups[d]),
                           static_cast<int>(of.before[d])};
  };
  for (const DenseGradient& one : each) {
    const auto& shape = one.as_pairs.shape;
    out.push_back({.is_ds = one.is_ds,
                   .to = {strided(one.as_pairs, compiler::Layout::dense), cuda::stored(one.as_pairs.dtype)},
                   .batch = groups(one, 0),
                   .heads = groups(one, 1),
                   .rows = static_cast<int>(shape[2]),
                   .columns = static_cast<int>(shape[3])});
  }
  return out;
}

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/stored_ds.cpp — the gradient of a dense bias in a backward whose kernel stores dS
#include <algorithm>
#include <array>

#include "codegen/ceil_div.h"
#include "codegen/ds_term.h"
#include "runtime/engines/cuda/backward.h"
#include "runtime/engines/cuda/maps.h"
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

}  // namespace

bool BackwardRun::plan_ds() {
  if (!whole_.kernel->has(codegen::sum_ds)) return true;
  codegen::Wanted wanted(of_.args.captures.size());
  for (const Captured& one : captured_)
    for (const std::uint32_t slot : one.slots) wanted[slot] = true;
  const auto term = codegen::ds_term(of_.mod.mod, wanted);
  if (!term) return false;
  const auto of = std::ranges::find_if(
      captured_, [&](const Captured& one) { return std::ranges::find(one.slots, term->capture) != one.slots.end(); });
  if (of == captured_.end() || has_other_terms(of_.mod.mod, *of, term->capture)) return false;

  const Tensor& to = *of->into;
  DenseGradient out{
      .of = &*of, .slot = term->capture, .as_pairs = {to.data, to.dtype, {1, 1, 1, 1}, {0, 0, 0, 0}, to.device}};
  out.groups = {std::max(p_.batch, std::int64_t{1}), std::max(p_.q_heads, std::int64_t{1}), 1, 1};
  for (std::size_t d = 0; d < term->along.size(); ++d) {
    const auto [what, by] = term->along[d];
    if (what == Along::none) {
      // The other elements along such a dimension are 0; sum_ds.cuh does not write them.
      if (to.shape[d] != 1) return false;
      continue;
    }
    const auto at = static_cast<std::size_t>(what) - 1;
    out.groups[at] = by;
    out.as_pairs.shape[at] = to.shape[d];
    out.as_pairs.strides[at] = to.strides[d];
  }
  const std::array<std::int64_t, 4> pairs{p_.batch, p_.q_heads, p_.q_offset + p_.q.length, p_.kv.length};
  // Reads beyond a tensor's end are of its last element, which then has the gradients of several pairs.
  for (std::size_t d = 0; d < 4; ++d)
    if (out.as_pairs.shape[d] < ceil_div(pairs[d], out.groups[d])) return false;

  out.cleared = whole_.kernel->skips;
  const bool same = p_.q_offset == 0 && out.groups[0] == 1 && out.groups[1] == 1 &&
                    std::ranges::equal(pairs, std::span(out.as_pairs.shape).first(4));
  out.is_ds = same && !term->factor && to.dtype == call_.q.dtype && has_boxes(out.as_pairs) &&
              (!out.cleared || is_clearable(to));
  const codegen::Tile& tile = whole_.plan().tile;
  const std::int64_t of_tile = p_.batch * p_.q_heads * p_.q.length * tile.n *
                               static_cast<std::int64_t>(size_of(call_.q.dtype));
  out.tiles = out.is_ds
                  ? kv_places()
                  : std::clamp(means_.ds_bytes / std::max<std::int64_t>(of_tile, 1), std::int64_t{1}, kv_places());
  dense_ = out;
  return true;
}

Tensor BackwardRun::ds_tensor(std::byte* memory) const {
  if (dense_.is_ds) return dense_.as_pairs;
  return {ds_.in(memory),
          call_.q.dtype,
          {p_.batch, p_.q_heads, p_.q.length, dense_.tiles * whole_.plan().tile.n},
          {},
          call_.q.device};
}

StoredDs BackwardRun::stored_ds(std::byte* memory, std::int64_t first_tile) const {
  const Tensor ds = ds_tensor(memory);
  const auto& shape = dense_.as_pairs.shape;
  return {.map = boxes_of(ds, whole_.plan().tile.m),
          .ds = strided(ds, compiler::Layout::dense),
          .first_tile = static_cast<int>(first_tile),
          .is_gradient = dense_.is_ds,
          .to = {strided(dense_.as_pairs, compiler::Layout::dense), stored(dense_.as_pairs.dtype)},
          .batch = {static_cast<int>(shape[0]), static_cast<int>(dense_.groups[0])},
          .heads = {static_cast<int>(shape[1]), static_cast<int>(dense_.groups[1])},
          .rows = static_cast<int>(shape[2]),
          .columns = static_cast<int>(shape[3])};
}

void BackwardRun::clear_ds(Launches& launches, std::byte* memory) const {
  const Tensor ds = ds_tensor(memory);
  launches.clear(static_cast<unsigned*>(ds.data), static_cast<std::size_t>(bytes_of(ds)) / sizeof(unsigned));
}

void BackwardRun::put_other_keys(std::byte* memory) const {
  const auto stream = static_cast<cu::Stream>(means_.stream);
  BackwardArgs args = whole_.arguments;
  args.kv_places = static_cast<int>(dense_.tiles);
  const std::int64_t most = means_.blocks ? std::min(means_.blocks, device_.sms) : device_.sms;
  Walk walk = walk_of(whole_, std::min(sets_of_kv() * dense_.tiles, most));
  walk.arguments = &args;
  for (std::int64_t first = first_tile() - dense_.tiles; first >= 0; first -= dense_.tiles) {
    args.next = counters_.in(memory) + next_items_of_further() + first / dense_.tiles;
    Launches launches;
    if (dense_.cleared) clear_ds(launches, memory);
    const codegen::KernelChoice& choice = whole_.kernel->choice;
    launches.launch({.kernel = &whole_.kernel->kernel,
                     .grid = {static_cast<unsigned>(walk.call.blocks), 1, 1},
                     .threads = choice.threads,
                     .shared_bytes = choice.shared_bytes,
                     .arguments = &args});
    put_companion(launches, walk, codegen::sum_ds);
    std::vector<std::byte> user = user_bytes(memory, first);
    launches.put(stream, user);
  }
  Launches after;
  walk.sums_ds = false;
  put_after(after, walk);
  std::vector<std::byte> user = user_bytes(memory);
  after.put(stream, user);
}

}  // namespace attune::runtime::cuda

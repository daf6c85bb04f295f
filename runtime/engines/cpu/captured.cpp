// runtime/engines/cpu/captured.cpp — sums of captured tensors' gradients, with copies for concurrent tasks
#include "runtime/engines/cpu/captured.h"

#include <algorithm>
#include <map>

namespace attune::runtime::cpu {
namespace {

using ir::Input;

/// Limit on the bytes of all copies beyond the first of each gradient.
constexpr std::int64_t most_captured_bytes = std::int64_t{1} << 29;

}  // namespace

codegen::Wanted wanted(const Call& call) {
  const compiler::Args& args = call.args;
  const std::vector<Backward::Captured>& captured = call.backward().captured;
  codegen::Wanted out;
  for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
    out.push_back(
        args.captures[slot].size() > 0 &&
        std::any_of(captured.begin(), captured.end(), [&](const auto& asked) { return is_of(asked, args, slot); }));
  return out;
}

CapturedSums::CapturedSums(const Call& call, const KernelsFor& what, const codegen::BackwardParts& parts,
                           const BackwardPlan& plan)
    : args_(call.args) {
  for (const Backward::Captured& asked : call.backward().captured) {
    if (asked.of.size() == 0) continue;
    gradients_.push_back({.asked = &asked, .size = asked.of.size(), .rows = {what, Unit::f32, asked.into.dtype}});
    gradients_.back().separate = separate_axes(gradients_.back(), parts, call.problem);
  }
  fit(plan.sizes());
  for (Gradient& g : gradients_) g.copies = copies(g);
  std::map<std::int64_t, std::size_t> chain_of;
  for (std::size_t task = 0; task < plan.tasks().size(); ++task) {
    Axes place = plan.place(plan.tasks()[task]);
    for (std::size_t axis = 0; axis < place.size(); ++axis) place[axis] %= lanes_[axis];
    const auto [at, is_new] = chain_of.try_emplace(number(place, {}), chains_.size());
    if (is_new) {
      chains_.emplace_back();
      chain_lanes_.push_back(place);
    }
    chains_[at->second].push_back(task);
  }
}

/// An axis counts as separate only if an index is that coordinate itself, and is never clamped.
std::array<bool, BackwardPlan::axes> CapturedSums::separate_axes(const Gradient& gradient,
                                                                 const codegen::BackwardParts& parts,
                                                                 const compiler::Problem& problem) const {
  const Tensor& of = gradient.asked->of;
  const auto always = [&](Input coordinate, std::int64_t length) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(of.rank); ++i) {
      bool here = of.shape[i] >= length;
      for (const codegen::Scattered& s : parts.scattered)
        if (is_of(*gradient.asked, args_, s.capture)) here = here && s.plain[i] == coordinate;
      if (here) return true;
    }
    return false;
  };
  const bool by_batch = always(Input::B, problem.batch), by_head = always(Input::H, problem.q_heads);
  enum : std::size_t { Batch, Head, Part, Chunk };
  std::array<bool, BackwardPlan::axes> separate{};
  separate[Batch] = by_batch;
  separate[Head] = by_head;
  separate[Part] = by_head && (by_batch || !problem.kv_shared);
  separate[Chunk] = always(Input::KV, problem.kv.length);
  return separate;
}

std::int64_t CapturedSums::copies(const Gradient& gradient) const {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < lanes_.size(); ++axis) count *= gradient.separate[axis] ? 1 : lanes_[axis];
  return count;
}

/// Lowers the number of concurrent tasks until their copies fit.
void CapturedSums::fit(const Axes& sizes) {
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) lanes_[axis] = std::max<std::int64_t>(1, sizes[axis]);
  for (;;) {
    const Gradient* largest = nullptr;
    std::int64_t bytes = 0;
    const auto extra = [&](const Gradient& g) { return (copies(g) - 1) * g.size * std::int64_t{sizeof(float)}; };
    for (const Gradient& g : gradients_) {
      bytes += extra(g);
      if (!largest || extra(g) > extra(*largest)) largest = &g;
    }
    if (bytes <= most_captured_bytes) return;
    std::size_t widest = 0;
    for (std::size_t axis = 0; axis < lanes_.size(); ++axis)
      if (!largest->separate[axis] && (largest->separate[widest] || lanes_[axis] > lanes_[widest])) widest = axis;
    lanes_[widest] = (lanes_[widest] + 1) / 2;
  }
}

std::int64_t CapturedSums::number(const Axes& place, const std::array<bool, BackwardPlan::axes>& separate) const {
  std::int64_t at = 0;
  for (std::size_t axis = 0; axis < place.size(); ++axis)
    if (!separate[axis]) at = at * lanes_[axis] + place[axis];
  return at;
}

void CapturedSums::lay_out(Workspace& memory) {
  for (Gradient& g : gradients_) g.sums = memory.take<float>(g.copies * g.size);
}

std::vector<float*> CapturedSums::gradients(std::size_t chain) const {
  std::vector<float*> by_slot(args_.captures.size());
  for (std::uint32_t slot = 0; slot < by_slot.size(); ++slot)
    for (const Gradient& g : gradients_)
      if (is_of(*g.asked, args_, slot)) by_slot[slot] = g.sums + number(chain_lanes_[chain], g.separate) * g.size;
  return by_slot;
}

namespace {

/// Elements that one task clears or stores.
constexpr std::int64_t piece = 1 << 18;

}  // namespace

void CapturedSums::clear(const Executor& executor) {
  for (const Gradient& g : gradients_) {
    const std::int64_t all = g.copies * g.size;
    const auto one = [&](std::int64_t i, int) {
      std::fill(g.sums + i * piece, g.sums + std::min(all, (i + 1) * piece), 0.0f);
    };
    run_tasks(ceil_div(all, piece), one, executor);
  }
}

void CapturedSums::store(const std::vector<CapturedSum>& sinks, const Executor& executor) const {
  for (const Gradient& g : gradients_) {
    const std::vector<double>* sink = nullptr;
    for (const CapturedSum& s : sinks)
      if (s.asked == g.asked) sink = &s.sum;
    const std::int64_t width = g.asked->of.rank ? g.asked->of.shape[static_cast<std::size_t>(g.asked->of.rank - 1)] : 1;
    const std::int64_t rows = g.size / width, per_task = std::max<std::int64_t>(1, piece / width);
    const auto one = [&](std::int64_t i, int) { store(g, i * per_task, std::min(rows, (i + 1) * per_task), sink); };
    run_tasks(ceil_div(rows, per_task), one, executor);
  }
}

/// Stores rows along the last dimension.
void CapturedSums::store(const Gradient& g, std::int64_t first, std::int64_t last,
                         const std::vector<double>* sink) const {
  const Tensor& into = g.asked->into;
  const auto rank = static_cast<std::size_t>(into.rank);
  const std::int64_t width = rank ? into.shape[rank - 1] : 1;
  std::vector<float> sum(static_cast<std::size_t>(width));
  for (std::int64_t row = first; row < last; ++row) {
    for (std::int64_t i = 0; i < width; ++i) {
      double total = sink ? (*sink)[static_cast<std::size_t>(row * width + i)] : 0;
      for (std::int64_t copy = 0; copy < g.copies; ++copy)
        total += static_cast<double>(g.sums[copy * g.size + row * width + i]);
      sum[static_cast<std::size_t>(i)] = static_cast<float>(total);
    }
    std::int64_t origin = 0, rest = row;
    for (std::size_t i = rank ? rank - 1 : 0; i-- > 0; rest /= into.shape[i])
      origin += rest % into.shape[i] * into.strides[i];
    g.rows.store(into, {.origin = origin, .row = 0, .column = rank ? into.strides[rank - 1] : 1},
                 {.from = sum.data(), .row = width, .rows = 1, .columns = width});
  }
}

}  // namespace attune::runtime::cpu

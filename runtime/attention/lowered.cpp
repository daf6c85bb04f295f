// runtime/attention/lowered.cpp — the lowered form of an Attention, and the memo that keeps it
#include "runtime/attention/lowered.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "compiler/check.h"
#include "runtime/engines/dump.h"
#include "runtime/machine/watch/watch.h"

namespace attune::detail {
namespace {

watch::Lowered fact(const compiler::LoweredMod& lowered, const compiler::Steps& steps, double seconds) {
  watch::Lowered out{.mod = lowered.digest.hex(), .steps = {}, .seconds = seconds};
  for (const auto& step : steps.steps)
    out.steps.push_back({step.name, std::chrono::duration<double>(step.took).count(), step.nodes});
  return out;
}

bool have_types(std::span<const Tensor> captures, const Lowered& lowered) {
  return std::ranges::equal(captures, lowered.written.captures, {}, &Tensor::dtype, &compiler::CaptureSlot::dtype);
}

}  // namespace

Lowered::Lowered(const Attention& a, std::span<const DType> types)
    : score(a.score), mask(a.mask), prob(a.prob), sink(a.sink) {
  const bool watched = runtime::wants(runtime::Fact::lowered), dumped = runtime::dumps();
  compiler::Steps steps;
  steps.keep_text = dumped;
  const runtime::Clock clock;
  compiler::BoundMod traced = compiler::trace(a);
  for (std::size_t i = 0; i < types.size(); ++i) traced.mod.captures[i].dtype = types[i];
  written = traced.mod;
  if (watched || dumped) steps.steps.push_back(compiler::traced_step(written, clock.took(), steps.keep_text));
  lowered = compiler::lower(std::move(traced), watched || dumped ? &steps : nullptr);
  if (watched) runtime::record(fact(lowered, steps, clock.seconds()));
  if (dumped) runtime::remember_steps(written, lowered, steps);
}

const compiler::LoweredMod& Lowered::part(compiler::PartSink of_sink) const {
  const std::lock_guard lock(parts_mutex_);
  auto& made = parts_[of_sink == compiler::PartSink::kept ? 0 : 1];
  if (!made) made = compiler::lower(compiler::part_of({written, lowered.slots}, of_sink));
  return *made;
}

std::shared_ptr<const Lowered> Lowered::typed(const Attention& a, std::span<const Tensor> captures) const {
  if (have_types(captures, *this)) return nullptr;
  const auto known = [&]() -> std::shared_ptr<const Lowered> {
    for (const auto& one : typed_)
      if (have_types(captures, *one)) return one;
    return nullptr;
  };
  {
    const std::lock_guard lock(typed_mutex_);
    if (auto found = known()) return found;
  }
  // Without the mutex, because lowering is reported to callbacks.
  std::vector<DType> types;
  for (const Tensor& t : captures) types.push_back(t.dtype);
  auto made = std::make_shared<const Lowered>(a, types);
  const std::lock_guard lock(typed_mutex_);
  if (auto found = known()) return found;
  return typed_.emplace_back(std::move(made));
}

void Lowered::check_sizes(std::span<const Tensor> captures, const compiler::Problem& problem) const {
  {
    const std::lock_guard lock(fine_mutex_);
    if (fine_ == problem && std::ranges::equal(captures, fine_shapes_, {}, &Tensor::shape)) return;
  }
  compiler::check_reads(written, captures, problem);
  const std::lock_guard lock(fine_mutex_);
  fine_ = problem;
  fine_shapes_.clear();
  for (const Tensor& t : captures) fine_shapes_.push_back(t.shape);
}

Memo::Memo(const Memo& other) {
  const Busy lock(other.busy_, other.last_);
  last_ = other.last_;
}

Memo& Memo::operator=(const Memo& other) {
  std::shared_ptr<const Lowered> theirs = Memo(other).last_;
  const Busy lock(busy_, last_);
  last_ = std::move(theirs);
  return *this;
}

}  // namespace attune::detail

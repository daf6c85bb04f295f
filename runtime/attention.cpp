// runtime/attention.cpp — include/attune/attention.h made real: lower once, check each call, hand it to an engine
#include "runtime/attention.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/check.h"
#include "compiler/explain.h"
#include "compiler/lower.h"
#include "ir/print.h"
#include "runtime/cuda/engine.h"
#include "runtime/offline/purpose.h"
#include "runtime/options.h"
#include "runtime/oracle/oracle.h"
#include "runtime/oracle/verify.h"
#include "runtime/watch/dump.h"
#include "runtime/watch/watch.h"

namespace attune {
namespace detail {

struct Lowered {
  // The parts it was made of. They are kept so that no other part can get their addresses while those are compared.
  Score score;
  Mask mask;
  Prob prob;
  Sink sink;
  compiler::Mod written;         ///< as the user wrote it, for messages
  compiler::LoweredMod lowered;  ///< for engines

  explicit Lowered(const Attention& a) : score(a.score), mask(a.mask), prob(a.prob), sink(a.sink) {
    const bool watched = runtime::wants(runtime::Fact::lowered), dumped = runtime::dumps();
    compiler::Steps steps;
    steps.keep_text = dumped;
    const runtime::Clock clock;
    compiler::BoundMod traced = compiler::trace(a);
    written = traced.mod;
    if (watched || dumped) steps.steps.push_back(compiler::traced_step(written, clock.took(), steps.keep_text));
    lowered = compiler::lower(std::move(traced), watched || dumped ? &steps : nullptr);
    if (watched) runtime::tell(fact(steps, clock.seconds()));
    if (dumped) runtime::remember_steps(written, lowered, steps);
  }
  watch::Lowered fact(const compiler::Steps& steps, double seconds) const {
    watch::Lowered out{.mod = lowered.digest.hex(), .steps = {}, .seconds = seconds};
    for (const auto& step : steps.steps)
      out.steps.push_back({step.name, std::chrono::duration<double>(step.took).count(), step.nodes});
    return out;
  }
  bool is_of(const Attention& a) const {
    return score.identity() == a.score.identity() && mask.identity() == a.mask.identity() &&
           prob.identity() == a.prob.identity() && sink.identity() == a.sink.identity();
  }

  /// Refuses reads that are never in range. Sizes that passed once are not checked again.
  void check_reads(const compiler::Problem& problem) const {
    if (lowered.slots.captures.empty()) return;
    {
      const std::lock_guard lock(fine_mutex_);
      if (fine_ == problem) return;
    }
    compiler::check_reads(written, lowered.slots.captures, problem);
    const std::lock_guard lock(fine_mutex_);
    fine_ = problem;
  }

 private:
  mutable std::mutex fine_mutex_;
  mutable std::optional<compiler::Problem> fine_;
};

Memo::Memo(const Memo& other) {
  const std::lock_guard lock(other.mutex_);
  last_ = other.last_;
}

Memo& Memo::operator=(const Memo& other) {
  std::shared_ptr<const Lowered> theirs = Memo(other).last_;
  const std::lock_guard lock(mutex_);
  last_ = std::move(theirs);
  return *this;
}

std::shared_ptr<const Lowered> Memo::get(const Attention& attention) const {
  const std::lock_guard lock(mutex_);
  if (!last_ || !last_->is_of(attention)) last_ = std::make_shared<const Lowered>(attention);
  return last_;
}

}  // namespace detail

namespace runtime {
namespace {

/// A checked call, and the engine that computes it (never `automatic`).
struct Checked {
  std::shared_ptr<const detail::Lowered> lowered;
  compiler::Problem problem;
  Target target;
  std::optional<bool> exact;
};

/// The engine asked for, or the one that reads the memory the tensors are in.
Target engine_for(Target asked, const Device& device) {
  const bool on_host = device.kind == Device::Kind::cpu;
  if (asked == Target::automatic) return on_host ? Target::cpu : Target::cuda;
  if (on_host == (asked != Target::cuda)) return asked;
  if (on_host)
    throw Error("engine-device", "the CUDA engine reads the memory of devices", {}, "q is on the host",
                "copy the tensors to a device first: array.on(Device::cuda()); or leave .target as it is");
  throw Error("engine-device",
              fmt::format("{} reads the memory of the host", asked == Target::cpu ? "the CPU engine" : "the oracle"),
              {}, fmt::format("q is on cuda:{}", device.index),
              "copy the tensors to the host first: array.on(Device::cpu()); or leave .target as it is");
}

template <class Call>
Checked check(const Attention& attention, const Call& call) {
  auto lowered = attention.memo.get(attention);
  compiler::Problem problem = compiler::check(lowered->lowered, call, attention.scale);
  lowered->check_reads(problem);
  const Target target = engine_for(attention.target, call.q.device);
  if (target == Target::cpu && call.q.dtype == DType::f64)
    throw Error("engine-type", "the CPU engine computes in f32", {}, "q, k and v hold f64",
                "convert them to f32, or choose .target = Target::oracle: exact, in double precision, and slow");
  return {std::move(lowered), std::move(problem), target, attention.exact};
}

/// Returns what `body` returns. An Error without a place of its own gets the line of the call.
template <class Body>
auto placed(Line at, const Body& body) {
  const Telling telling;
  try {
    return body();
  } catch (const Error& e) {
    if (!e.where.name.empty() || !e.where.text.empty() || !at.file) throw;
    throw Error(e.code, e.problem, {.name = at.file, .line = at.number}, e.why, e.fix);
  }
}

/// What a call needs kernels for, by the Mod as the user wrote it.
Request asked_for(const Checked& checked, const Tensor& q) {
  Request out = request_of(checked.lowered->written, checked.lowered->lowered);
  if (checked.target == Target::cpu) {
    out.target = codegen::name_of(cpu::isa());
    out.shape.dtype = q.dtype;
  }
  return out;
}

Request request(const Checked& checked, const Forward& call) {
  Request out = asked_for(checked, call.q);
  if (checked.target == Target::cuda) {
    const cuda::KernelWants wants = cuda::forward_wants(checked.lowered->lowered, call, checked.problem, checked.exact);
    out.target = runtime::name_of(TargetName{.arch = wants.spec.arch});
    out.shape = shape_of(wants.spec, wants.kind.length);
    if (const auto found = cuda::remembered(wants.key); found.preference)
      out.shape.kernel = found.preference->variant.text();
  }
  return out;
}

Request request(const Checked& checked, const Backward& call) {
  Request out = asked_for(checked, call.q);
  out.pass = "backward";
  std::string grads;
  const std::vector<Tensor>& captures = checked.lowered->lowered.slots.captures;
  for (std::size_t slot = 0; slot < captures.size(); ++slot)
    if (captures[slot].size() > 0 &&
        std::ranges::find(call.captured, captures[slot], &Backward::Captured::of) != call.captured.end())
      grads += (grads.empty() ? "" : "+") + checked.lowered->written.captures[slot].name;
  if (checked.target == Target::cuda) {
    const cuda::BackwardWants wants = cuda::backward_wants(call, checked.lowered->lowered, checked.problem,
                                                           checked.exact);
    out.target = runtime::name_of(TargetName{.arch = wants.spec.arch});
    out.shape = shape_of(wants.spec, wants.length);
    // A backward's kernels take any strides of their results.
    out.shape.boxes.reset();
    out.shape.store.reset();
  }
  out.shape.grads = grads.empty() ? "none" : grads;
  return out;
}

/// What the forward that a backward without o computes first needs kernels for.
Request request_of_forward(const Checked& checked, const Backward& call) {
  return request(checked, cuda::first_forward(call, checked.problem));
}

cpu::Means means(const Resources& with, const Purpose& purpose, cpu::Stages* stages = nullptr, Used* used = nullptr) {
  return {.isa = cpu::isa(),
          .executor = with.executor,
          .progress = with.progress,
          .workspace = with.workspace,
          .stages = stages,
          .used = used,
          .purpose = &purpose};
}

/// Reports a call to callbacks, and verifies some of its rows where ATTUNE_VERIFY asks for it.
class Watched {
 public:
  Watched(const char* call, Line at)
      : call_(call), at_(at), told_(wants(Fact::called)), verifies_(options().verify > 0) {
    if (told_) clock_.emplace();
  }
  /// For the engine to fill in; null where it is not needed.
  Used* used() { return told_ || verifies_ ? &used_ : nullptr; }

  template <class Call>
  void done(const Checked& checked, const Call& call, void* stream) {
    const bool by_oracle = checked.target == Target::oracle;
    if (by_oracle) used_ = {"oracle", "oracle", 0};
    if (told_) tell(fact(checked, call.q.dtype));
    if (verifies_ && !by_oracle)
      verify(
          checked.lowered->lowered, call, checked.problem,
          {.rows = options().verify, .sample = next_sample(), .stream = stream, .used = used_, .exact = checked.exact});
  }

 private:
  watch::Called fact(const Checked& checked, DType dtype) const {
    const compiler::Problem& p = checked.problem;
    return {.call = call_,
            .mod = checked.lowered->lowered.digest.hex(),
            .target = used_.target,
            .kernel = used_.kernel,
            .dtype = std::string(name_of(dtype)),
            .batch = p.batch,
            .q_heads = p.q_heads,
            .kv_heads = p.kv_heads,
            .q_len = p.q.length,
            .kv_len = p.kv.length,
            .d = p.d,
            .dv = p.dv,
            .packed = p.q.packed(),
            .workspace = used_.workspace,
            .seconds = clock_->seconds(),
            .file = at_.file,
            .line = at_.number};
  }

  const char* call_;
  Line at_;
  bool told_, verifies_;
  std::optional<Clock> clock_;
  Used used_;
};

}  // namespace

void run(const Attention& attention, const Forward& call, const Resources& with, Line at, cpu::Stages* stages) {
  placed(at, [&] {
    Watched watched("forward", at);
    const Checked checked = check(attention, call);
    const auto& [lowered, problem, target, exact] = checked;
    const auto describe = [&checked, &call] { return request(checked, call); };
    const Purpose purpose(describe);
    if (target == Target::oracle)
      oracle_forward(lowered->lowered, call, problem, with.progress);
    else if (target == Target::cpu)
      cpu::forward(lowered->lowered, call, problem, means(with, purpose, stages, watched.used()));
    else
      cuda::forward(checked.lowered->lowered, call, problem,
                    {.stream = with.stream,
                     .workspace = with.workspace,
                     .cover = with.cover.lists(),
                     .used = watched.used(),
                     .exact = exact,
                     .purpose = &purpose});
    watched.done(checked, call, with.stream);
  });
}

void run(const Attention& attention, const Backward& call, const Resources& with, Line at, cpu::Stages* stages) {
  placed(at, [&] {
    Watched watched("backward", at);
    const Checked checked = check(attention, call);
    const auto& [lowered, problem, target, exact] = checked;
    const auto describe = [&checked, &call] { return request(checked, call); };
    const Purpose purpose(describe);
    const auto describe_forward = [&checked, &call] { return request_of_forward(checked, call); };
    const Purpose first(describe_forward);
    if (target == Target::oracle)
      oracle_backward(lowered->lowered, call, problem, with.progress);
    else if (target == Target::cpu)
      cpu::backward(lowered->lowered, call, problem, means(with, purpose, stages, watched.used()));
    else
      cuda::backward(checked.lowered->lowered, call, problem,
                     {.stream = with.stream,
                      .workspace = with.workspace,
                      .used = watched.used(),
                      .exact = exact,
                      .purpose = &purpose,
                      .purpose_of_forward = &first});
    watched.done(checked, call, with.stream);
  });
}

namespace {

template <class Call>
Checked check_on_device(const Attention& attention, const Call& call) {
  Checked out = check(attention, call);
  if (out.target != Target::cuda) throw Bug("a kernel of a device is asked for, and the call is on the host");
  return out;
}

}  // namespace

void run(const Attention& attention, const Forward& call, const codegen::Preference* preference, const Cover& cover) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  cuda::forward(checked.lowered->lowered, call, checked.problem,
                {.preference = preference, .cover = cover.lists(), .exact = checked.exact});
}

Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return Cover(
      cuda::cover(checked.lowered->lowered, call, checked.problem, {.preference = preference, .exact = checked.exact}));
}

void run(const Attention& attention, const Backward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  cuda::backward(checked.lowered->lowered, call, checked.problem, {.preference = preference, .exact = checked.exact});
}

std::vector<cuda::KernelStory> stories(const Attention& attention, const Backward& call,
                                       const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::backward_stories(checked.lowered->lowered, call, checked.problem,
                                {.preference = preference, .exact = checked.exact});
}

cuda::KernelStory story(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::forward_story(checked.lowered->lowered, call, checked.problem,
                             {.preference = preference, .exact = checked.exact});
}

cuda::KernelWants wants(const Attention& attention, const Forward& call) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::forward_wants(checked.lowered->lowered, call, checked.problem, checked.exact);
}

}  // namespace runtime

void Attention::operator()(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, Line at) const {
  run({.q = q, .k = k, .v = v, .o = o}, at);
}

void Attention::run(const Forward& call, Line at) const { run(call, Resources{}, at); }
void Attention::backward(const Backward& call, Line at) const { backward(call, Resources{}, at); }

void Attention::run(const Forward& call, const Resources& with, Line at) const { runtime::run(*this, call, with, at); }
void Attention::backward(const Backward& call, const Resources& with, Line at) const {
  runtime::run(*this, call, with, at);
}

void Attention::prepare(const Forward& call, Line at) const { workspace(call, {}, at); }
void Attention::prepare(const Backward& call, Line at) const { workspace(call, {}, at); }

// To know what a call needs, its kernels have been compiled and loaded.
std::size_t Attention::workspace(const Forward& call, const Resources& with, Line at) const {
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    const auto describe = [&checked, &call] { return runtime::request(checked, call); };
    const runtime::Purpose purpose(describe);
    if (checked.target == Target::oracle) return 0;
    if (checked.target == Target::cuda)
      return runtime::cuda::forward_workspace(
          checked.lowered->lowered, call, checked.problem,
          {.cover = with.cover.lists(), .exact = checked.exact, .purpose = &purpose});
    return runtime::cpu::forward_workspace(checked.lowered->lowered, call, checked.problem,
                                           runtime::means(with, purpose));
  });
}
std::size_t Attention::workspace(const Backward& call, const Resources& with, Line at) const {
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    const auto describe = [&checked, &call] { return runtime::request(checked, call); };
    const runtime::Purpose purpose(describe);
    const auto describe_forward = [&checked, &call] { return runtime::request_of_forward(checked, call); };
    const runtime::Purpose first(describe_forward);
    if (checked.target == Target::oracle) return 0;
    if (checked.target == Target::cuda)
      return runtime::cuda::backward_workspace(
          checked.lowered->lowered, call, checked.problem,
          {.exact = checked.exact, .purpose = &purpose, .purpose_of_forward = &first});
    return runtime::cpu::backward_workspace(checked.lowered->lowered, call, checked.problem,
                                            runtime::means(with, purpose));
  });
}

Cover Attention::cover(const Forward& call, const Resources& with, Line at) const {
  return runtime::placed(at, [&]() -> Cover {
    const runtime::Checked checked = runtime::check(*this, call);
    if (checked.target != Target::cuda) return {};
    const auto describe = [&checked, &call] { return runtime::request(checked, call); };
    const runtime::Purpose purpose(describe);
    return Cover(runtime::cuda::cover(
        checked.lowered->lowered, call, checked.problem,
        {.stream = with.stream, .workspace = with.workspace, .exact = checked.exact, .purpose = &purpose}));
  });
}
std::size_t Attention::cover_bytes(const Forward& call, Line at) const {
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    if (checked.target != Target::cuda) return 0;
    const auto describe = [&checked, &call] { return runtime::request(checked, call); };
    const runtime::Purpose purpose(describe);
    return runtime::cuda::cover_bytes(checked.lowered->lowered, call, checked.problem,
                                      {.exact = checked.exact, .purpose = &purpose});
  });
}

std::string Attention::explain() const {
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::LoweredMod lowered = compiler::lower(*this, &steps);
  return compiler::explain(lowered, steps);
}

}  // namespace attune

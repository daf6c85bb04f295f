// runtime/attention/attention.cpp — include/attune/attention.h made real: lower once, check each call, hand it to an
// engine
#include "runtime/attention/attention.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/parts.h"
#include "compiler/bind.h"
#include "compiler/check.h"
#include "compiler/explain.h"
#include "compiler/lower.h"
#include "compiler/part.h"
#include "ir/print.h"
#include "runtime/attention/offline/purpose.h"
#include "runtime/attention/placed.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/engines/oracle/outside.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/dump.h"
#include "runtime/machine/watch/watch.h"
#include "runtime/ranks/device.h"
#include "runtime/ranks/host.h"
#include "runtime/ranks/or_stop.h"
#include "runtime/ranks/transport/local.h"

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

  /// `types`: of the captures that calls bind; none: of those that the parts were made with.
  explicit Lowered(const Attention& a, std::span<const DType> types = {})
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
    if (watched) runtime::tell(fact(steps, clock.seconds()));
    if (dumped) runtime::remember_steps(written, lowered, steps);
  }
  watch::Lowered fact(const compiler::Steps& steps, double seconds) const {
    watch::Lowered out{.mod = lowered.digest.hex(), .steps = {}, .seconds = seconds};
    for (const auto& step : steps.steps)
      out.steps.push_back({step.name, std::chrono::duration<double>(step.took).count(), step.nodes});
    return out;
  }
  /// The same for parts of calls.
  const compiler::LoweredMod& part(compiler::PartSink of_sink) const {
    const std::lock_guard lock(parts_mutex_);
    auto& made = parts_[of_sink == compiler::PartSink::kept ? 0 : 1];
    if (!made) made = compiler::lower(compiler::part_of({written, lowered.slots}, of_sink));
    return *made;
  }
  bool is_of(const Attention& a) const {
    return score.identity() == a.score.identity() && mask.identity() == a.mask.identity() &&
           prob.identity() == a.prob.identity() && sink.identity() == a.sink.identity();
  }

  /// The same parts for the types of these captures, lowered once for each combination. Null where they are its own.
  std::shared_ptr<const Lowered> typed(const Attention& a, std::span<const Tensor> captures) const {
    if (std::ranges::equal(captures, written.captures, {}, &Tensor::dtype, &compiler::CaptureSlot::dtype))
      return nullptr;
    const std::lock_guard lock(typed_mutex_);
    for (const auto& one : typed_)
      if (std::ranges::equal(captures, one->written.captures, {}, &Tensor::dtype, &compiler::CaptureSlot::dtype))
        return one;
    std::vector<DType> types;
    for (const Tensor& t : captures) types.push_back(t.dtype);
    return typed_.emplace_back(std::make_shared<const Lowered>(a, types));
  }

  /// Refuses reads that are never in range. Sizes that passed once are not checked again.
  void check_reads(std::span<const Tensor> captures, const compiler::Problem& problem) const {
    if (captures.empty()) return;
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

 private:
  mutable std::mutex typed_mutex_;
  mutable std::vector<std::shared_ptr<const Lowered>> typed_;
  mutable std::mutex parts_mutex_;
  mutable std::array<std::optional<compiler::LoweredMod>, 2> parts_;
  mutable std::mutex fine_mutex_;
  mutable std::optional<compiler::Problem> fine_;
  mutable std::vector<Tensor::Extents> fine_shapes_;
};

/// A flag as a lock.
class Busy {
 public:
  explicit Busy(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) flag_.wait(true, std::memory_order_relaxed);
  }
  ~Busy() {
    flag_.clear(std::memory_order_release);
    flag_.notify_one();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::atomic_flag& flag_;
};

Memo::Memo(const Memo& other) {
  const Busy lock(other.busy_);
  last_ = other.last_;
}

Memo& Memo::operator=(const Memo& other) {
  std::shared_ptr<const Lowered> theirs = Memo(other).last_;
  const Busy lock(busy_);
  last_ = std::move(theirs);
  return *this;
}

std::shared_ptr<const Lowered> Memo::get(const Attention& attention) const {
  const Busy lock(busy_);
  if (!last_ || !last_->is_of(attention)) last_ = std::make_shared<const Lowered>(attention);
  return last_;
}

}  // namespace detail

namespace runtime {
namespace {

/// A call in which every slot that it binds at all has its tensor, and every captured gradient the tensor it is of.
template <class Call>
struct Completed {
  std::vector<Tensor> captures;
  Call call;

  Completed(const compiler::Slots& slots, const Call& asked)
      : captures(compiler::filled(slots, asked.captures)), call(asked) {
    call.captures = captures;
    if constexpr (std::is_same_v<Call, Backward>) {
      const std::span<const Tensor> all = captures.empty() ? std::span<const Tensor>(slots.captures) : captures;
      for (Backward::Captured& gradient : call.captured)
        if (gradient.slot >= 0 && static_cast<std::size_t>(gradient.slot) < all.size())
          gradient.of = all[static_cast<std::size_t>(gradient.slot)];
    }
  }
  Completed(const Completed&) = delete;
  Completed& operator=(const Completed&) = delete;
};

bool names_slots(const Forward&) { return false; }
bool names_slots(const Backward& call) {
  return std::ranges::any_of(call.captured, [](const Backward::Captured& one) { return one.slot >= 0; });
}

/// A checked call, and the engine that computes it (never `automatic`).
template <class Call>
struct Checked {
  std::shared_ptr<const detail::Lowered> lowered;
  std::unique_ptr<const Completed<Call>> completed;  ///< null: the call is complete as it is
  const Call* asked;
  compiler::Problem problem;
  Target target;
  std::optional<bool> exact;

  const Call& call() const { return completed ? completed->call : *asked; }
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

/// Two outputs can be merged by their lse if what the prob mod makes of p grows as p does.
void check_before(const Forward& call, const compiler::Mod& mod) {
  if (!call.o_before.given() || codegen::linear_in_p(mod.prob)) return;
  throw Error("before-prob", "o_before is given, and the prob mod is no multiple of p", {},
              "a merge makes each p smaller, and the prob mod has already acted on the greater ones",
              "compute all keys in one call, or use a prob mod of the form p * …, as dropout is");
}
void check_before(const Backward&, const compiler::Mod&) {}

/// `plan`: over ranks; the call is this rank's, and the problem becomes that of all.
template <class Call>
Checked<Call> check(const Attention& attention, const Call& asked, const detail::Ranks* plan = nullptr) {
  auto lowered = attention.memo.get(attention);
  std::unique_ptr<const Completed<Call>> completed;
  if (compiler::check_bound(lowered->lowered, asked.captures, asked.params) || names_slots(asked))
    completed = std::make_unique<const Completed<Call>>(lowered->lowered.slots, asked);
  const Call& call = completed ? completed->call : asked;
  if (!call.captures.empty())
    if (auto other = lowered->typed(attention, call.captures)) lowered = std::move(other);
  compiler::Problem problem = compiler::check(lowered->lowered, call, attention.scale);
  if (plan) problem = ranks::whole_of(*plan, lowered->lowered, args_of(lowered->lowered, call), problem, call.q.dtype);
  lowered->check_reads(call.captures.empty() ? lowered->lowered.slots.captures : call.captures, problem);
  const Target target = engine_for(attention.target, call.q.device);
  if (target == Target::cpu && call.q.dtype == DType::f64)
    throw Error("engine-type", "the CPU engine computes in f32", {}, "q, k and v hold f64",
                "convert them to f32, or choose .target = Target::oracle: exact, in double precision, and slow");
  check_before(call, lowered->lowered.mod);
  return {std::move(lowered), std::move(completed), &asked, std::move(problem), target, attention.exact};
}

/// What a call needs kernels for, by the Mod as the user wrote it.
template <class Call>
Request asked_for(const Checked<Call>& checked) {
  const Call& call = checked.call();
  Request out = request_of(checked.lowered->written, args_of(checked.lowered->lowered, call));
  if (checked.target == Target::cpu) {
    out.target = codegen::name_of(cpu::isa());
    out.shape.dtype = call.q.dtype;
  }
  return out;
}

Request request(const Checked<Forward>& checked) {
  Request out = asked_for(checked);
  if (checked.target == Target::cuda) {
    const cuda::KernelWants wants = cuda::forward_wants(checked.lowered->lowered, checked.call(), checked.problem,
                                                        checked.exact);
    out.target = runtime::name_of(TargetName{.arch = wants.spec.arch});
    out.shape = shape_of(wants.spec, wants.kind.length);
    if (const auto found = cuda::remembered(wants.key); found.preference)
      out.shape.kernel = found.preference->variant.text();
  }
  return out;
}

Request request(const Checked<Backward>& checked) {
  Request out = asked_for(checked);
  out.pass = "backward";
  std::string grads;
  const compiler::Args args = args_of(checked.lowered->lowered, checked.call());
  for (std::uint32_t slot = 0; slot < args.captures.size(); ++slot)
    if (args.captures[slot].size() > 0 &&
        std::ranges::any_of(checked.call().captured, [&](const auto& one) { return is_of(one, args, slot); }))
      grads += (grads.empty() ? "" : "+") + checked.lowered->written.captures[slot].name;
  if (checked.target == Target::cuda) {
    const cuda::BackwardWants wants = cuda::backward_wants(checked.call(), checked.lowered->lowered, checked.problem,
                                                           checked.exact);
    out.target = runtime::name_of(TargetName{.arch = wants.spec.arch});
    // A backward's kernels take any strides of their results.
    codegen::KernelSpec spec = wants.spec;
    spec.store = spec_of({.out_dtype = spec.out, .d = spec.d, .dv = spec.dv}, spec.arch).store;
    out.shape = shape_of(spec, wants.length);
  }
  out.shape.grads = grads.empty() ? "none" : grads;
  return out;
}

/// What the forward that a backward without o computes first needs kernels for.
Request request_of_forward(const Checked<Backward>& checked) {
  const Forward forward = cuda::first_forward(checked.call(), checked.problem);
  return request(Checked<Forward>{checked.lowered, nullptr, &forward, checked.problem, checked.target, checked.exact});
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

/// The last report of a call on the host: only those report progress.
template <class Call>
void ended(const Checked<Call>& checked, const Resources& with) {
  if (with.progress && checked.target != Target::cuda) with.progress(1);
}

bool continues(const Forward& call) { return call.o_before.given(); }
bool continues(const Backward&) { return false; }

/// Reports a call to callbacks, and verifies some of its rows where ATTUNE_VERIFY asks for it.
class Watched {
 public:
  Watched(const char* call, Line at)
      : call_(call), at_(at), told_(wants(Fact::called)), verifies_(options().verify > 0) {
    if (told_) clock_.emplace();
  }
  /// For the engine to fill in; null where it is not needed.
  Used* used() { return told_ || verifies_ ? &used_ : nullptr; }

  enum class Verified : std::uint8_t { no, yes };
  template <class Call>
  void done(const Checked<Call>& checked, void* stream, Verified verified = Verified::yes) {
    const bool by_oracle = checked.target == Target::oracle;
    if (by_oracle) used_ = {"oracle", "oracle", 0};
    if (told_) tell(fact(checked));
    if (verifies_ && verified == Verified::no)
      note(watch::Noted::Of::verify, "a call over ranks is not verified: no rank has all of it");
    else if (verifies_ && !by_oracle && continues(checked.call()))
      note(watch::Noted::Of::verify, "a call that is merged with results of another is not verified");
    else if (verifies_ && !by_oracle)
      verify(
          checked.lowered->lowered, checked.call(), checked.problem,
          {.rows = options().verify, .sample = next_sample(), .stream = stream, .used = used_, .exact = checked.exact});
  }

 private:
  template <class Call>
  watch::Called fact(const Checked<Call>& checked) const {
    const compiler::Problem& p = checked.problem;
    return {.call = call_,
            .mod = checked.lowered->lowered.digest.hex(),
            .target = used_.target,
            .kernel = used_.kernel,
            .dtype = std::string(name_of(checked.call().q.dtype)),
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

void compute(const detail::Ranks& plan, const Checked<Forward>& checked, const cpu::Means& means) {
  ranks::forward_on_host(plan, checked.lowered->lowered, checked.call(), checked.problem, means);
}
void compute(const detail::Ranks& plan, const Checked<Backward>& checked, const cpu::Means& means) {
  ranks::backward_on_host(plan, checked.lowered->lowered, checked.call(), checked.problem, means);
}
void compute_on_device(const detail::Ranks& plan, const Checked<Forward>& checked, const ranks::PartMods& parts,
                       const cuda::Means& means) {
  ranks::forward_on_device(plan, checked.lowered->lowered, parts, checked.call(), checked.problem, means);
}
void compute_on_device(const detail::Ranks& plan, const Checked<Backward>& checked, const ranks::PartMods& parts,
                       const cuda::Means& means) {
  const auto describe_forward = [&checked] { return request_of_forward(checked); };
  const Purpose first(describe_forward);
  cuda::Means all = means;
  all.purpose_of_forward = &first;
  ranks::backward_on_device(plan, checked.lowered->lowered, parts, checked.call(), checked.problem, all);
}

/// A rank's part of a call of several. It allocates its memory, of which the workspace is no part.
template <class Call>
void run_shared(const char* name, const Attention& attention, const Call& asked, const Resources& with, Line at) {
  Watched watched(name, at);
  const detail::Ranks& plan = *with.shares.get();
  const ranks::Local<Call> local(plan, asked);
  const Checked checked = check(attention, local.call(), &plan);
  if (checked.target == Target::oracle)
    throw Error("shares-call", "the oracle does not compute over ranks", {}, "it has the whole call on one",
                "leave .target as it is, or call without Shares");
  const auto describe = [&checked] { return request(checked); };
  const Purpose purpose(describe);
  if (checked.target == Target::cuda) {
    if (with.cover.lists())
      throw Error("shares-call", "calls over ranks do not take a cover", {},
                  "each rank lists the tiles of its own parts", "leave it out");
    const auto parts = [&checked](compiler::PartSink sink) -> const compiler::LoweredMod& {
      return checked.lowered->part(sink);
    };
    compute_on_device(plan, checked, parts,
                      {.stream = with.stream, .used = watched.used(), .exact = checked.exact, .purpose = &purpose});
  } else {
    cpu::Means means = runtime::means(with, purpose, nullptr, watched.used());
    means.workspace = {};
    compute(plan, checked, means);
  }
  watched.done(checked, with.stream, Watched::Verified::no);
}

/// Calls run_shared, and stops the other ranks if it throws: they may already wait for this rank.
template <class Call>
void run_or_stop(const char* name, const Attention& attention, const Call& asked, const Resources& with, Line at) {
  ranks::or_stop(*with.shares.get(), [&] { run_shared(name, attention, asked, with, at); });
}

}  // namespace

void run(const Attention& attention, const Forward& asked, const Resources& with, Line at, cpu::Stages* stages) {
  placed(at, [&] {
    if (with.shares) return run_or_stop("forward", attention, asked, with, at);
    Watched watched("forward", at);
    const Checked checked = check(attention, asked);
    const Forward& call = checked.call();
    if (options().check_range && checked.target != Target::cuda)
      refuse_outside_reads(checked.lowered->written, checked.lowered->lowered, call, checked.problem);
    const auto describe = [&checked] { return request(checked); };
    const Purpose purpose(describe);
    if (checked.target == Target::oracle)
      oracle_forward(checked.lowered->lowered, call, checked.problem, with.progress);
    else if (checked.target == Target::cpu)
      cpu::forward(checked.lowered->lowered, call, checked.problem, means(with, purpose, stages, watched.used()));
    else
      cuda::forward(checked.lowered->lowered, call, checked.problem,
                    {.stream = with.stream,
                     .workspace = with.workspace,
                     .cover = with.cover.lists(),
                     .used = watched.used(),
                     .exact = checked.exact,
                     .purpose = &purpose});
    ended(checked, with);
    watched.done(checked, with.stream);
  });
}

void run(const Attention& attention, const Backward& asked, const Resources& with, Line at, cpu::Stages* stages) {
  placed(at, [&] {
    if (with.shares) return run_or_stop("backward", attention, asked, with, at);
    Watched watched("backward", at);
    const Checked checked = check(attention, asked);
    const Backward& call = checked.call();
    const auto describe = [&checked] { return request(checked); };
    const Purpose purpose(describe);
    const auto describe_forward = [&checked] { return request_of_forward(checked); };
    const Purpose first(describe_forward);
    if (checked.target == Target::oracle)
      oracle_backward(checked.lowered->lowered, call, checked.problem, with.progress);
    else if (checked.target == Target::cpu)
      cpu::backward(checked.lowered->lowered, call, checked.problem, means(with, purpose, stages, watched.used()));
    else
      cuda::backward(checked.lowered->lowered, call, checked.problem,
                     {.stream = with.stream,
                      .workspace = with.workspace,
                      .used = watched.used(),
                      .exact = checked.exact,
                      .purpose = &purpose,
                      .purpose_of_forward = &first});
    ended(checked, with);
    watched.done(checked, with.stream);
  });
}

namespace {

template <class Call>
Checked<Call> check_on_device(const Attention& attention, const Call& call) {
  Checked<Call> out = check(attention, call);
  if (out.target != Target::cuda) throw Bug("a kernel of a device is asked for, and the call is on the host");
  return out;
}

}  // namespace

void run(const Attention& attention, const Forward& call, const codegen::Preference* preference,
         const Resources& with) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  cuda::forward(checked.lowered->lowered, checked.call(), checked.problem,
                {.stream = with.stream,
                 .workspace = with.workspace,
                 .preference = preference,
                 .cover = with.cover.lists(),
                 .exact = checked.exact});
}

std::size_t workspace(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::forward_workspace(checked.lowered->lowered, checked.call(), checked.problem,
                                 {.preference = preference, .exact = checked.exact});
}

Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return Cover(cuda::cover(checked.lowered->lowered, checked.call(), checked.problem,
                           {.preference = preference, .exact = checked.exact}));
}

void run(const Attention& attention, const Backward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  cuda::backward(checked.lowered->lowered, checked.call(), checked.problem,
                 {.preference = preference, .exact = checked.exact});
}

std::vector<cuda::KernelStory> stories(const Attention& attention, const Backward& call,
                                       const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::backward_stories(checked.lowered->lowered, checked.call(), checked.problem,
                                {.preference = preference, .exact = checked.exact});
}

cuda::KernelStory story(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::forward_story(checked.lowered->lowered, checked.call(), checked.problem,
                             {.preference = preference, .exact = checked.exact});
}

cuda::KernelWants wants(const Attention& attention, const Forward& call) {
  const Telling telling;
  const Checked checked = check_on_device(attention, call);
  return cuda::forward_wants(checked.lowered->lowered, checked.call(), checked.problem, checked.exact);
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
  if (with.shares) return 0;
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    const auto describe = [&checked] { return runtime::request(checked); };
    const runtime::Purpose purpose(describe);
    if (checked.target == Target::oracle) return 0;
    if (checked.target == Target::cuda)
      return runtime::cuda::forward_workspace(
          checked.lowered->lowered, checked.call(), checked.problem,
          {.cover = with.cover.lists(), .exact = checked.exact, .purpose = &purpose});
    return runtime::cpu::forward_workspace(checked.lowered->lowered, checked.call(), checked.problem,
                                           runtime::means(with, purpose));
  });
}
std::size_t Attention::workspace(const Backward& call, const Resources& with, Line at) const {
  if (with.shares) return 0;
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    const auto describe = [&checked] { return runtime::request(checked); };
    const runtime::Purpose purpose(describe);
    const auto describe_forward = [&checked] { return runtime::request_of_forward(checked); };
    const runtime::Purpose first(describe_forward);
    if (checked.target == Target::oracle) return 0;
    if (checked.target == Target::cuda)
      return runtime::cuda::backward_workspace(
          checked.lowered->lowered, checked.call(), checked.problem,
          {.exact = checked.exact, .purpose = &purpose, .purpose_of_forward = &first});
    return runtime::cpu::backward_workspace(checked.lowered->lowered, checked.call(), checked.problem,
                                            runtime::means(with, purpose));
  });
}

Cover Attention::cover(const Forward& call, const Resources& with, Line at) const {
  return runtime::placed(at, [&]() -> Cover {
    const runtime::Checked checked = runtime::check(*this, call);
    if (checked.target != Target::cuda) return {};
    const auto describe = [&checked] { return runtime::request(checked); };
    const runtime::Purpose purpose(describe);
    return Cover(runtime::cuda::cover(
        checked.lowered->lowered, checked.call(), checked.problem,
        {.stream = with.stream, .workspace = with.workspace, .exact = checked.exact, .purpose = &purpose}));
  });
}
std::size_t Attention::cover_bytes(const Forward& call, Line at) const {
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked = runtime::check(*this, call);
    if (checked.target != Target::cuda) return 0;
    const auto describe = [&checked] { return runtime::request(checked); };
    const runtime::Purpose purpose(describe);
    return runtime::cuda::cover_bytes(checked.lowered->lowered, checked.call(), checked.problem,
                                      {.exact = checked.exact, .purpose = &purpose});
  });
}

std::vector<Slot> Attention::captures() const {
  std::vector<Slot> out;
  for (const compiler::CaptureSlot& slot : memo.get(*this)->written.captures)
    out.push_back({slot.name, slot.dtype, slot.rank});
  return out;
}
std::vector<Slot> Attention::params() const {
  std::vector<Slot> out;
  for (const ir::Signature::Param& slot : memo.get(*this)->written.params)
    out.push_back({slot.name, slot.type == ir::Type::F32 ? DType::f32 : DType::i32, 0});
  return out;
}

std::string Attention::explain() const {
  compiler::Steps steps;
  steps.keep_text = true;
  const compiler::LoweredMod lowered = compiler::lower(*this, &steps);
  return compiler::explain(lowered, steps);
}

}  // namespace attune

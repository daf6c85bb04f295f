// runtime/attention/face.cpp — implements include/attune/attention.h: binds and checks each call, and hands it to an
// engine
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <attune/append.h>
#include <attune/error.h>
#include <fmt/format.h>

#include "compiler/explain.h"
#include "compiler/lower.h"
#include "compiler/sequences.h"
#include "runtime/attention/bind.h"
#include "runtime/attention/lowered.h"
#include "runtime/attention/tools.h"
#include "runtime/attention/watched.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/layout.h"
#include "runtime/engines/oracle/oracle.h"
#include "runtime/machine/background.h"
#include "runtime/machine/options.h"
#include "runtime/machine/parallel.h"
#include "runtime/machine/placed.h"
#include "runtime/machine/watch/watch.h"
#include "runtime/platform/emulated/emulated.h"
#include "runtime/ranks/carry/carry.h"
#include "runtime/ranks/plan/local.h"
#include "runtime/ranks/transport/transport.h"

namespace attune {
namespace runtime {
namespace {

/// The engine of a target, while this object lives.
class Chosen {
 public:
  explicit Chosen(const Target& target)
      : engine_(target == Target::cpu      ? cpu::engine
                : target == Target::oracle ? oracle
                                           : cuda::engine) {
    if (target.engine == Target::Engine::emulated)
      here_.emplace(emulated::Gpu{.arch = target.arch, .sms = target.sms, .seed = target.seed});
  }
  const Engine* operator->() const { return &engine_; }

 private:
  const Engine& engine_;
  std::optional<emulated::Here> here_;
};

/// `used`: for the engine to fill in; may be null.
Means means_of(const Checked& checked, const Resources& with, Used* used) {
  const Target target = checked.target();
  if (target == Target::cuda)
    return {.workspace = with.workspace, .used = used, .stream = with.stream, .cover = with.cover.lists()};
  Means out{.workspace = with.workspace, .used = used, .executor = with.executor, .progress = with.progress};
  if (target == Target::cpu) {
    out.isa = cpu::isa();
    if (!out.executor.parallel_for && out.executor.workers == 0)
      out.executor.workers = cpu::usual_workers(checked.call().problem);
  }
  return out;
}

/// Runs a rank's part of a call over several ranks. It allocates its memory and does not use the workspace.
void run_part(const detail::Ranks& plan, const Checked& checked, const Resources& with, Used* used) {
  if (checked.target() == Target::oracle)
    throw Error("sharding-call", "the oracle does not compute over ranks", {}, "it computes the whole call on one",
                "leave .target as it is, or call without a Sharding");
  if (checked.target().engine == Target::Engine::emulated)
    throw Error("sharding-call", "an emulated GPU does not compute over ranks", {}, "there is one of it",
                "leave .target as it is, or call without a Sharding");
  Means means = means_of(checked, with, used);
  means.workspace = {};
  if (checked.target() == Target::cpu) return ranks::run_on_host(plan, checked.call(), means);
  if (means.cover)
    throw Error("sharding-call", "calls over ranks do not support a cover", {},
                "each rank lists the tiles of its own blocks", "leave it out");
  const auto parts = [&checked](compiler::PartSink sink) -> const compiler::LoweredMod& {
    return checked.lowered().part(sink);
  };
  ranks::run_on_device(plan, parts, checked.call(), means);
}

/// If `body` throws, stops the other ranks: they may already wait for this rank.
template <class Asked>
void run_shared(const Attention& attention, const Asked& asked, const Resources& with, Line at) {
  const detail::Ranks& plan = *with.sharding.get();
  ranks::or_stop(plan, [&] {
    Watched watched(at);
    const ranks::Local<Asked> local(plan, asked);
    const Checked checked(attention, local.call(), &plan);
    run_part(plan, checked, with, watched.used());
    watched.done(checked, with.stream, Watched::Whole::no);
  });
}

void run_whole(const Attention& attention, const What& asked, const Resources& with, Line at, Stages* stages) {
  Watched watched(at);
  const Checked checked(attention, asked);
  const bool on_host = checked.target() != Target::cuda;
  refuse_outside(checked, with.stream);
  Means means = means_of(checked, with, watched.used());
  means.stages = stages;
  Chosen(checked.target())->run(checked.call(), means);
  if (on_host && with.progress) with.progress(1);  // only calls on the host report progress
  watched.done(checked, with.stream);
}

std::size_t workspace_of(const Attention& attention, const What& asked, const Resources& with, Line at) {
  if (with.sharding) return 0;
  return placed(at, [&] {
    const Checked checked(attention, asked);
    Means means = means_of(checked, with, nullptr);
    means.stream = nullptr;  // nothing is enqueued here, and the stream may be capturing
    return Chosen(checked.target())->workspace(checked.call(), means);
  });
}

/// The copies own what the call refers to besides the tensors' data. The file of a Line may be gone by then.
template <class Asked>
void prepare_in_background(const Attention& attention, const Asked& asked) {
  struct Kept {
    Attention attention;
    Asked call;
    std::vector<Tensor> captures;
    std::vector<double> params;
  };
  const auto kept = std::make_shared<Kept>(Kept{
      attention, asked, {asked.captures.begin(), asked.captures.end()}, {asked.params.begin(), asked.params.end()}});
  kept->call.captures = kept->captures;
  kept->call.params = kept->params;
  in_background([kept] { workspace_of(kept->attention, kept->call, {}, Line{}); });
}

}  // namespace

void run(const Attention& attention, const What& asked, const Resources& with, Line at, Stages* stages) {
  placed(at, [&] {
    if (!with.sharding) return run_whole(attention, asked, with, at, stages);
    asked.visit([&](const auto& call) { run_shared(attention, call, with, at); });
  });
}

}  // namespace runtime

Target Target::emulated(std::string_view name, Line at) {
  const runtime::emulated::Gpu gpu = runtime::emulated::gpu_of("emulated:" + std::string(name),
                                                               {.name = at.file ? at.file : "", .line = at.number});
  return {Engine::emulated, static_cast<std::uint8_t>(gpu.arch), static_cast<std::uint16_t>(gpu.sms), gpu.seed};
}

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

void Attention::prepare_async(const Forward& call) const { runtime::prepare_in_background(*this, call); }
void Attention::prepare_async(const Backward& call) const { runtime::prepare_in_background(*this, call); }

// Computing a call's workspace compiles and loads its kernels, so prepare needs nothing else.
std::size_t Attention::workspace(const Forward& call, const Resources& with, Line at) const {
  return runtime::workspace_of(*this, call, with, at);
}
std::size_t Attention::workspace(const Backward& call, const Resources& with, Line at) const {
  return runtime::workspace_of(*this, call, with, at);
}

Cover Attention::cover(const Forward& call, const Resources& with, Line at) const {
  return runtime::placed(at, [&]() -> Cover {
    const runtime::Checked checked(*this, call);
    if (checked.target() != Target::cuda) return {};
    return Cover(runtime::cuda::cover(checked.call(), {.workspace = with.workspace, .stream = with.stream}));
  });
}
std::size_t Attention::cover_bytes(const Forward& call, Line at) const {
  return runtime::placed(at, [&]() -> std::size_t {
    const runtime::Checked checked(*this, call);
    return checked.target() == Target::cuda ? runtime::cuda::cover_bytes(checked.call(), {}) : 0;
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

void wait() {
  runtime::wait_for_background();
  runtime::finish_later_work();
}

}  // namespace attune

namespace attune::runtime {
namespace {

/// A checked call on a device, while callbacks wait.
struct OnDevice {
  const Recording recording;
  const Checked checked;

  OnDevice(const Attention& attention, const What& asked) : checked(attention, asked) {
    if (checked.target() != Target::cuda) throw Bug("the call is on the host, and only devices have such kernels");
  }
  const Call& call() const { return checked.call(); }
};

}  // namespace

void run(const Attention& attention, const What& asked, const codegen::Preference* preference, const Resources& with) {
  const OnDevice on(attention, asked);
  cuda::engine.run(
      on.call(),
      {.workspace = with.workspace, .stream = with.stream, .preference = preference, .cover = with.cover.lists()});
}

std::size_t workspace(const Attention& attention, const What& asked, const codegen::Preference* preference) {
  return cuda::engine.workspace(OnDevice(attention, asked).call(), {.preference = preference});
}

Cover cover(const Attention& attention, const Forward& call, const codegen::Preference* preference) {
  return Cover(cuda::cover(OnDevice(attention, call).call(), {.preference = preference}));
}

std::vector<KernelStory> stories(const Attention& attention, const What& asked, const codegen::Preference* preference) {
  return cuda::engine.story(OnDevice(attention, asked).call(), {.preference = preference});
}

codegen::CallSpec call_spec(const Attention& attention, const What& asked) {
  return cuda::call_spec(OnDevice(attention, asked).call());
}

}  // namespace attune::runtime

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attune {
namespace runtime {
namespace {

/// Keeps denormals, which tasks flush: here numbers are stored and not computed with.
class KeepDenormals {
 public:
#if defined(__x86_64__)
  KeepDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~0x8040u); }
  ~KeepDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

/// Refuses rows that have no place, before any is written.
void check_places(const Append& call, const compiler::Problem& p) {
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence seq = sequence(p, b);
    if (seq.q_len > seq.kv_len)
      throw Error("kv-len", fmt::format("kv_len[{}] is {}, and {} keys are new", b, seq.kv_len, seq.q_len), {},
                  "it counts all keys of the entry, new ones included", "add the number of new keys to it");
    const KeyRows keys(p, call.page_table, seq, 0);
    for (std::int64_t at = seq.kv_len - seq.q_len; at < seq.kv_len;) {
      const KeyRows::Range some = keys.range(call.k, at, seq.kv_len);
      if (!some.there)
        throw Error("page-table",
                    fmt::format("page_table[{}, {}] is not a page of the pool", b, at / p.per_entry->page_size), {},
                    fmt::format("key {} is stored there, and the pool has {} pages", at, call.k.shape[0]),
                    "give each new key a page of the pool");
      at += some.count;
    }
  }
}

/// ATTUNE_CHECK=range on a device: refuses what the host would refuse. Only integers are copied; the checks read
/// nothing else.
void check_there(Append call, void* stream) {
  if (cuda::is_captured(stream))
    return note(watch::Notice::Of::check, "the places of an append that is captured into a graph are not checked");
  OnHost on_host(stream);
  on_host.take(call.page_table, call.kv_len, call.cu_seqlens, call.slots);
  for (Tensor* t : {&call.k_new, &call.v_new, &call.k, &call.v}) t->device = Device::cpu();
  const compiler::Problem p = compiler::check(call);
  if (!call.slots.given()) check_places(call, p);
}

/// into = from / scale, row by row.
void put(const Tensor& from, const MatrixLayout& source, const Tensor& into, const MatrixLayout& target,
         std::int64_t rows, std::int64_t width, double scale) {
  const KeepDenormals keep;
  const bool as_they_are = from.dtype == into.dtype && scale == 1 && source.column == 1 && target.column == 1;
  const auto size = static_cast<std::int64_t>(size_of(into.dtype));
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t at = source.origin + i * source.row, to = target.origin + i * target.row;
    if (as_they_are)
      std::memcpy(static_cast<char*>(into.data) + to * size, static_cast<const char*>(from.data) + at * size,
                  static_cast<std::size_t>(width * size));
    else
      for (std::int64_t j = 0; j < width; ++j)
        store(into, to + j * target.column, load(from, at + j * source.column) / scale);
  }
}

void append_one(const Append& call, const compiler::Problem& p, std::int64_t b, std::int64_t h) {
  const Sequence seq = sequence(p, b);
  const KeyRows keys(p, call.page_table, seq, h);
  const std::int64_t old = seq.kv_len - seq.q_len;
  const auto all = [&](const Tensor& from, const Tensor& into, std::int64_t width, double scale) {
    MatrixLayout source = matrix(from, p.q.layout, b, h, seq.q_start);
    for (std::int64_t at = old; at < seq.kv_len;) {
      const KeyRows::Range some = keys.range(into, at, seq.kv_len);
      put(from, source, into, some.at, some.count, width, scale);
      source.origin += some.count * source.row;
      at += some.count;
    }
  };
  all(call.k_new, call.k, p.d, call.k_scale);
  all(call.v_new, call.v, p.dv, call.v_scale);
}

/// All rows of a head, in their order: of several with the same slot, the last stays.
void append_by_slot(const Append& call, const compiler::Problem& p, std::int64_t h) {
  const std::int64_t page_size = call.k.shape[2];
  const auto all = [&](const Tensor& from, const Tensor& into, std::int64_t width, double scale) {
    for (std::int64_t i = 0; i < p.q.total; ++i)
      if (const std::int64_t slot = compiler::whole(call.slots, i); slot >= 0) {
        MatrixLayout target = matrix(into, compiler::Layout::paged, slot / page_size, h, 0);
        target.origin += slot % page_size * target.row;
        put(from, matrix(from, p.q.layout, 0, h, i), into, target, 1, width, scale);
      }
  };
  all(call.k_new, call.k, p.d, call.k_scale);
  all(call.v_new, call.v, p.dv, call.v_scale);
}

}  // namespace
}  // namespace runtime

void append(const Append& call, const Resources& with, Line at) {
  runtime::placed(at, [&] {
    const compiler::Problem p = compiler::check(call);
    if (call.k_new.device.kind == Device::Kind::cuda) {
      if (runtime::options().check_range) runtime::check_there(call, with.stream);
      return runtime::cuda::append(call, p, with.stream);
    }
    if (call.slots.given())
      return runtime::run_tasks(
          p.kv_heads, [&](std::int64_t h, int) { runtime::append_by_slot(call, p, h); }, with.executor);
    runtime::check_places(call, p);
    runtime::run_tasks(
        p.batch * p.kv_heads,
        [&](std::int64_t i, int) { runtime::append_one(call, p, i / p.kv_heads, i % p.kv_heads); }, with.executor);
  });
}

}  // namespace attune

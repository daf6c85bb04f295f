// runtime/attention/bind.cpp — binds a call to its attention and checks it: the result is the input of an engine
#include "runtime/attention/bind.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/facts/parts.h"
#include "compiler/bind.h"
#include "runtime/attention/offline/request.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cuda/engine.h"
#include "runtime/engines/cuda/kernels/tuned.h"
#include "runtime/platform/memory.h"
#include "runtime/ranks/plan/local.h"
#include "runtime/ranks/ranks.h"

namespace attune::runtime {
namespace {

bool on_host(const Call& call) { return call.q().device.kind == Device::Kind::cpu; }

/// Names of the captured tensors whose gradients the call asks for.
std::string gradients(const compiler::Mod& written, const Call& call) {
  std::string out;
  for (std::uint32_t slot = 0; slot < call.args.captures.size(); ++slot)
    if (call.args.captures[slot].size() > 0 &&
        std::ranges::any_of(call.backward().captured, [&](const auto& one) { return is_of(one, call.args, slot); }))
      out += (out.empty() ? "" : "+") + written.captures[slot].name;
  return out.empty() ? "none" : out;
}

Request asked_for(const compiler::Mod& written, const Call& call) {
  Request out = request_of(written, call.args);
  if (!call.is_forward()) {
    out.pass = "backward";
    out.grads = gradients(written, call);
  }
  if (on_host(call)) {
    out.target.isa = cpu::isa();
    out.call.spec.dtype = call.q().dtype;
    return out;
  }
  out.call = cuda::call_spec(call);
  out.sizes = cuda::sizes_of(call);
  out.target.arch = out.call.spec.arch;
  if (call.is_forward()) {
    const codegen::GpuParts parts = codegen::parts_of(call.mod, out.call, codegen::Way::forward);
    const std::string device = cuda::device_name(call.q().device.index);
    out.call.preference = cuda::remembered(cuda::tuned_key(device, parts, out.call)).preference;
  }
  return out;
}

}  // namespace

Purpose::Text CallPurpose::describe() const {
  if (of_ == Of::call) return text_of(asked_for(written_, call_));
  const Forward first = cuda::first_forward(call_);
  return text_of(asked_for(
      written_, {.mod = call_.mod, .args = call_.args, .problem = call_.problem, .what = first, .exact = call_.exact}));
}

namespace {

/// A call whose omitted captures have been filled in and whose captured gradients know their tensors.
template <class Asked>
struct Completed {
  std::vector<Tensor> captures;
  Asked call;

  Completed(const compiler::Slots& slots, const Asked& asked)
      : captures(compiler::filled(slots, asked.captures)), call(asked) {
    call.captures = captures;
    if constexpr (std::is_same_v<Asked, Backward>) {
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

/// The requested engine, or the engine for the device that holds the tensors.
Target engine_for(Target asked, const Device& device) {
  const bool on_host = device.kind == Device::Kind::cpu;
  if (asked == Target::automatic) return on_host ? Target::cpu : Target::cuda;
  if (on_host == (asked != Target::cuda)) return asked;
  if (on_host)
    throw Error("engine-device", "the CUDA engine reads the memory of devices", {}, "q is on the host",
                "copy the tensors to a GPU first, or leave out the target");
  const char* const whose = asked == Target::cpu      ? "the CPU engine"
                            : asked == Target::oracle ? "the oracle"
                                                      : "an emulated GPU";
  throw Error("engine-device", fmt::format("{} reads the memory of the host", whose), {},
              fmt::format("q is on cuda:{}", device.index),
              "copy the tensors to the host first, or leave out the target");
}

/// Two outputs can be merged by their lse only if the prob mod is linear in p.
void check_before(const Forward& call, const compiler::Mod& mod) {
  if (!call.o_before.given() || codegen::linear_in_p(mod.prob)) return;
  throw Error("before-prob", "o_before is given, and the prob mod is not a multiple of p", {},
              "merging scales every p down after the prob mod has read it",
              "compute all keys in one call, or use a prob mod of the form p * …, as dropout is");
}
void check_before(const Backward&, const compiler::Mod&) {}

}  // namespace

template <class Asked>
Checked::Bound Checked::bind(const Attention& attention, const Asked& asked, const detail::Ranks* plan) {
  std::shared_ptr<const detail::Lowered> lowered = attention.memo.get(attention);
  std::shared_ptr<const Completed<Asked>> completed;
  const bool named = names_slots(asked);
  if (compiler::check_bound(lowered->lowered, asked.captures, asked.params) || named)
    completed = std::make_shared<const Completed<Asked>>(lowered->lowered.slots, asked);
  const Asked& call = completed ? completed->call : asked;
  if (!call.captures.empty())
    if (auto other = lowered->typed(attention, call.captures)) lowered = std::move(other);
  const compiler::LoweredMod& mod = lowered->lowered;
  compiler::Problem problem = compiler::check(mod, call, attention.scale);
  if (plan) problem = ranks::whole_of(*plan, mod, args_of(mod, call), problem, call.q.dtype);
  lowered->check_reads(call.captures.empty() ? mod.slots.captures : call.captures, problem);
  const Target target = engine_for(attention.target, call.q.device);
  if (target == Target::cpu && call.q.dtype == DType::f64)
    throw Error("engine-type", "the CPU engine computes in f32", {}, "q, k and v hold f64",
                "convert them to f32, or take the oracle as target: exact, in double precision, and slow");
  check_before(call, mod.mod);
  return {std::move(lowered), std::move(completed), call, std::move(problem), target};
}

Checked::Checked(const Attention& attention, const What& asked, const detail::Ranks* plan)
    : bound_(asked.visit([&](const auto& call) { return bind(attention, call, plan); })),
      of_first_forward_(CallPurpose::Of::first_forward, written(), call_),
      of_call_(CallPurpose::Of::call, written(), call_, &of_first_forward_),
      call_{.mod = bound_.lowered->lowered,
            .args = bound_.what.visit([&](const auto& call) { return args_of(bound_.lowered->lowered, call); }),
            .problem = bound_.problem,
            .what = bound_.what,
            .exact = attention.exact,
            .purpose = &of_call_} {}

}  // namespace attune::runtime

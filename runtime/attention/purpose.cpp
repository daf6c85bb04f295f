// runtime/attention/purpose.cpp — describes the call that a kernel is needed for, as a request
#include "runtime/attention/purpose.h"

#include <algorithm>
#include <string>

#include "runtime/attention/offline/request.h"
#include "runtime/engines/cpu/engine.h"
#include "runtime/engines/cuda/engine.h"

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

void name_forward(Request& out, const Call& call) {
  const cuda::KernelWants wants = cuda::forward_wants(call);
  out.target = name_of(TargetName{.arch = wants.spec.arch});
  out.shape = shape_of(wants.spec, wants.kind.length);
  if (const auto found = cuda::remembered(wants.key); found.preference)
    out.shape.kernel = found.preference->variant.text();
}

void name_backward(Request& out, const Call& call) {
  codegen::CallSpec asked = cuda::backward_call_spec(call);
  codegen::KernelSpec& spec = asked.spec;
  out.target = name_of(TargetName{.arch = spec.arch});
  // The kernels of a backward accept any strides of their results.
  spec.store = spec_of({.out_dtype = spec.out, .d = spec.d, .dv = spec.dv}, spec.arch).store;
  out.shape = shape_of(spec, asked.length);
}

Request asked_for(const compiler::Mod& written, const Call& call) {
  Request out = request_of(written, call.args);
  if (on_host(call)) {
    out.target = codegen::name_of(cpu::isa());
    out.shape.dtype = call.q().dtype;
  } else {
    call.is_forward() ? name_forward(out, call) : name_backward(out, call);
  }
  if (call.is_forward()) return out;
  out.pass = "backward";
  out.shape.grads = gradients(written, call);
  return out;
}

}  // namespace

Purpose::Text CallPurpose::describe() const {
  if (of_ == Of::call) return text_of(asked_for(written_, call_));
  const Forward first = cuda::first_forward(call_);
  return text_of(asked_for(
      written_, {.mod = call_.mod, .args = call_.args, .problem = call_.problem, .what = first, .exact = call_.exact}));
}

}  // namespace attune::runtime

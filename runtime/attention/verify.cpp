// runtime/attention/verify.cpp — ATTUNE_VERIFY for calls on any device: their tensors are copied to the host first
#include "runtime/attention/verify.h"

#include <vector>

#include "codegen/choose/choose.h"
#include "compiler/check.h"
#include "runtime/attention/on_host.h"

namespace attune::runtime {
namespace {

/// Checks the call with these tensors. Its sizes are computed again if they were only on the device.
template <class Asked>
void verify_here(const Call& call, const Asked& here, bool sizes, const Verified& which) {
  const compiler::Problem known = sizes ? compiler::check(call.mod, here, call.problem.scale) : call.problem;
  Call on_host = call_of(call.mod, here, known);
  on_host.exact = call.exact;
  verify(on_host, which);
}

void verify_forward(const Call& call, const Verified& which, OnHost& on_host) {
  std::vector<Tensor> captures;
  for (const Tensor& t : call.args.captures) captures.push_back(on_host(t));
  Forward here = call.forward();
  here.captures = captures;
  on_host.take(here.q, here.k, here.v, here.o, here.lse, here.max);
  const bool sizes = call.problem.q.starts_on_device() || here.kv_len.given() || here.q_offsets.given() ||
                     here.page_table.given();
  if (sizes) on_host.take(here.cu_seqlens_q, here.cu_seqlens_kv, here.kv_len, here.q_offsets, here.page_table);
  verify_here(call, here, sizes, which);
}

void verify_backward(const Call& call, const Verified& which, OnHost& on_host) {
  Backward here = call.backward();
  std::vector<Tensor> captures;
  for (const Tensor& from : call.args.captures) {
    captures.push_back(on_host(from));
    for (Backward::Captured& one : here.captured)
      if (one.of == from) one.of = captures.back();
  }
  here.captures = captures;
  for (Backward::Captured& one : here.captured) on_host.take(one.into);
  on_host.take(here.q, here.k, here.v, here.grad_o, here.grad_lse, here.o, here.lse, here.dq, here.dk, here.dv,
               here.cu_seqlens_q, here.cu_seqlens_kv);
  verify_here(call, here, call.problem.q.starts_on_device(), which);
}

}  // namespace

void verify(const Call& call, const Verified& which, void* stream) {
  if (call.q().device.kind == Device::Kind::cpu) return verify(call, which);
  if (cuda::is_captured(stream))
    return note(watch::Notice::Of::verify, "a call that is captured into a graph is not verified");
  Verified by_device = which;
  by_device.by_device = true;
  OnHost on_host(stream);
  if (call.is_forward()) return verify_forward(call, by_device, on_host);
  if (call.q().dtype == DType::f32 && !codegen::is_exact(call.exact, DType::f32))
    return note(watch::Notice::Of::verify, "gradients whose products are of TF32 are not verified");
  verify_backward(call, by_device, on_host);
}

}  // namespace attune::runtime

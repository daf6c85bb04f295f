// runtime/attention/watched.cpp — reports a call to callbacks and checks it: ATTUNE_VERIFY, ATTUNE_CHECK=range, missing
// pages; a device's tensors are copied first
#include "runtime/attention/watched.h"

#include <string>
#include <vector>

#include "codegen/choose/choose.h"
#include "compiler/check.h"
#include "runtime/engines/cover/tiles.h"
#include "runtime/engines/oracle/verify.h"
#include "runtime/machine/options.h"
#include "runtime/machine/watch/watch.h"

namespace attune::runtime {
namespace {

void refuse_missing_pages_there(const Call& call, void* stream) {
  if (!call.problem.kv.paged()) return;
  if (cuda::is_captured(stream))
    return note(watch::Notice::Of::check, "the pages of a call that is captured into a graph are not checked");
  OnHost on_host(stream);
  std::vector<Tensor> captures;
  for (const Tensor& t : call.args.captures) captures.push_back(on_host(t));
  Forward here = call.forward();
  here.captures = captures;
  on_host.take(here.cu_seqlens_q, here.kv_len, here.q_offsets, here.page_table);
  // Nobody reads these.
  for (Tensor* t : {&here.q, &here.k, &here.v, &here.o, &here.lse, &here.max, &here.o_before, &here.lse_before})
    t->device = Device::cpu();
  const compiler::Problem problem = compiler::check(call.mod, here, call.problem.scale);
  refuse_missing_pages(call_of(call.mod, here, problem));
}

}  // namespace

void refuse_outside(const Checked& checked, void* stream) {
  const Call& call = checked.call();
  if (!call.is_forward()) return;
  if (checked.target() != Target::cuda) {
    refuse_missing_pages(call);
    if (options().check_range) refuse_outside_reads(checked.written(), call);
  } else if (options().check_range) {
    refuse_missing_pages_there(call, stream);
  }
}

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

namespace {

/// True if results are merged with another call's: no row can then be verified from one call alone.
bool is_merged(const Call& call) { return call.is_forward() && call.forward().o_before.given(); }

watch::Called fact(const Call& call, const Used& used, double seconds, Line at) {
  const compiler::Problem& p = call.problem;
  return {.call = call.name(),
          .mod = call.mod.digest.hex(),
          .target = used.target,
          .kernel = used.kernel,
          .dtype = std::string(name_of(call.q().dtype)),
          .batch = p.batch,
          .q_heads = p.q_heads,
          .kv_heads = p.kv_heads,
          .q_len = p.q.length,
          .kv_len = p.kv.length,
          .d = p.d,
          .dv = p.dv,
          .packed = p.q.packed(),
          .workspace = used.workspace,
          .seconds = seconds,
          .file = at.file,
          .line = at.number};
}

}  // namespace

void Watched::report(const Checked& checked, void* stream, Whole whole) {
  const bool by_oracle = checked.target() == Target::oracle;
  if (by_oracle) used_ = {"oracle", "oracle", 0};
  if (watched_) record(fact(checked.call(), used_, clock_->seconds(), at_));
  if (!verifies_) return;
  if (whole == Whole::no)
    note(watch::Notice::Of::verify, "a call over ranks is not verified: no rank holds all of it");
  else if (by_oracle)
    return;
  else if (is_merged(checked.call()))
    note(watch::Notice::Of::verify, "a call that is merged with results of another is not verified");
  else
    verify(checked.call(),
           {.rows = options().verify,
            .sample = next_sample(),
            .used = used_,
            .by_device = checked.target().engine == Target::Engine::emulated},
           stream);
}

}  // namespace attune::runtime

// runtime/attention/range.cpp — asks for the pages and the reads of a call; of a device, on copies of its integers
#include "runtime/attention/range.h"

#include <vector>

#include "compiler/check.h"
#include "runtime/attention/on_host.h"
#include "runtime/engines/cover/pages.h"
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

}  // namespace attune::runtime

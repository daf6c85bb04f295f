// runtime/attention/verify.cpp — ATTUNE_VERIFY for calls on any device: their tensors are copied to the host first
#include "runtime/attention/verify.h"

#include <cstddef>
#include <vector>

#include "codegen/choose.h"
#include "compiler/check.h"
#include "runtime/engines/cuda/memory.h"

namespace attune::runtime {
namespace {

/// Copies of a call's tensors in the host's memory.
class OnHost {
 public:
  explicit OnHost(void* stream) : stream_(stream) {}

  Tensor operator()(const Tensor& t) {
    if (!t.given() || t.device.kind == Device::Kind::cpu || t.size() == 0) return t;
    std::int64_t low = 0, high = 0;  // elements before and after the first one
    for (std::size_t d = 0; d < static_cast<std::size_t>(t.rank); ++d) {
      const std::int64_t reach = (t.shape[d] - 1) * t.strides[d];
      (reach < 0 ? low : high) += reach;
    }
    const std::size_t size = size_of(t.dtype), bytes = static_cast<std::size_t>(high - low + 1) * size;
    memory_.emplace_back(bytes);
    const auto all = static_cast<std::int64_t>(bytes);
    std::byte* first = static_cast<std::byte*>(t.data) + low * static_cast<std::int64_t>(size);
    cuda::copy(Tensor(first, DType::u8, {all}, {}, t.device), Tensor(memory_.back().data(), DType::u8, {all}), bytes,
               stream_);
    Tensor out = t;
    out.device = Device::cpu();
    out.data = memory_.back().data() - low * static_cast<std::int64_t>(size);
    return out;
  }
  template <class... Tensors>
  void take(Tensors&... all) {
    ((all = (*this)(all)), ...);
  }

 private:
  void* stream_;
  std::vector<std::vector<std::byte>> memory_;
};

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

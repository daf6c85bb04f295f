// runtime/engines/cuda/operands.cpp — a call's tensors as kernel arguments: strides, rows, and the width of copies
#include "runtime/engines/cuda/operands.h"

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::runtime::cuda {

namespace {

void require_writable(const char* name, const Tensor& t) {
  if (t.dtype == DType::f64)
    throw Error("engine-type", fmt::format("the CUDA engine does not write {} as f64", name), {}, "it computes in f32",
                "give it elements of f32");
}

void require_f32_rows(const char* name, const Tensor& t) {
  if (t.given() && t.dtype != DType::f32)
    throw Error("engine-type", fmt::format("the CUDA engine writes {} as f32", name), {},
                fmt::format("{} holds {}", name, name_of(t.dtype)), "give it elements of f32");
}

}  // namespace

void check_outputs(const Forward& call) {
  require_writable("o", call.o);
  require_f32_rows("lse", call.lse);
  require_f32_rows("max", call.max);
  if (call.o_before.given() && call.o_before.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o_before as f64", {}, "it computes in f32",
                "give it elements of f32");
  require_f32_rows("lse_before", call.lse_before);
}

void check_operands(const Backward& call) {
  require_writable("dq", call.dq);
  require_writable("dk", call.dk);
  require_writable("dv", call.dv);
  require_f32_rows("lse", call.lse);
  require_f32_rows("grad_lse", call.grad_lse);
  if (call.grad_o.dtype != call.q.dtype)
    throw Error("engine-type", "the CUDA engine needs grad_o in the type of q", {},
                fmt::format("grad_o holds {}, and q {}", name_of(call.grad_o.dtype), name_of(call.q.dtype)),
                fmt::format("convert grad_o to {}", name_of(call.q.dtype)));
  if (call.o.given() && call.o.dtype == DType::f64)
    throw Error("engine-type", "the CUDA engine does not read o as f64", {}, "it computes in f32",
                "give it elements of f32, or leave out o and lse");
  for (const Backward::Captured& one : call.captured) require_writable("the gradient of a captured tensor", one.into);
}

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/operands.cpp — a call's tensors as kernel arguments: strides, rows, the width of copies, tensor
// maps
#include "runtime/engines/cuda/operands.h"

#include <array>
#include <cstdint>

#include <attune/error.h>
#include <fmt/format.h>

#include "codegen/choose/gpu_element.h"
#include "runtime/platform/nvidia/driver.h"

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

// ---- tensor maps

namespace {

constexpr std::int64_t alignment = 16, most_stride = std::int64_t{1} << 40, most_extent = std::int64_t{1} << 32;

/// A packed tensor as a dense tensor with one batch entry that holds all sequences.
Tensor dense(const Tensor& t) {
  Tensor out = t;
  if (t.rank != 3) return out;
  out.rank = 4;
  out.shape = {1, t.shape[1], t.shape[0], t.shape[2]};
  out.strides = {0, t.strides[1], t.strides[0], t.strides[2]};
  return out;
}

int chunk_of(const Tensor& t) { return codegen::gpu_element(t.dtype).chunk(); }

/// Dimensions start with the innermost, which has stride 1.
template <std::size_t Rank>
TensorMap map_of(const Tensor& t, const std::array<std::int64_t, Rank>& shape,
                 const std::array<std::int64_t, Rank - 1>& outer, const std::array<int, Rank>& box) {
  const std::uint64_t bytes = size_of(t.dtype);
  std::array<std::uint64_t, Rank> extents{};
  std::array<std::uint64_t, Rank - 1> strides{};
  std::array<std::uint32_t, Rank> sides{}, steps{};
  for (std::size_t i = 0; i < Rank; ++i) {
    extents[i] = static_cast<std::uint64_t>(shape[i]);
    sides[i] = static_cast<std::uint32_t>(box[i]);
    steps[i] = 1;
  }
  for (std::size_t i = 0; i + 1 < Rank; ++i)  // the stride of an extent of 1 is never used and may be anything
    strides[i] = shape[i + 1] == 1 ? alignment : static_cast<std::uint64_t>(outer[i]) * bytes;
  TensorMap map{};
  driver().cuTensorMapEncodeTiled(&map, codegen::gpu_element(t.dtype).map, Rank, t.data, extents.data(), strides.data(),
                                  sides.data(), steps.data(), cu::Interleave::none, cu::Swizzle::b128,
                                  cu::Promote::b256, cu::Fill::zero);
  return map;
}

}  // namespace

bool has_boxes(const Tensor& of) {
  const Tensor t = dense(of);
  if (t.rank != 4 || t.strides[3] != 1 || reinterpret_cast<std::uintptr_t>(t.data) % alignment != 0) return false;
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] < 1 || t.shape[i] > most_extent) return false;
    if (i == 3 || t.shape[i] == 1) continue;
    const std::int64_t stride = t.strides[i];
    if (stride <= 0 || stride >= most_stride / bytes || stride * bytes % alignment != 0) return false;
  }
  return true;
}

TensorMap boxes_of(const Tensor& of, int rows) {
  const Tensor t = dense(of);
  const auto& s = t.shape;
  return map_of<4>(t, {s[3], s[2], s[1], s[0]}, {t.strides[2], t.strides[1], t.strides[0]}, {chunk_of(t), rows, 1, 1});
}

TensorMap boxes_of_heads(const Tensor& of, int rows, int heads, std::int64_t group) {
  const Tensor t = dense(of);
  const auto& s = t.shape;
  return map_of<5>(t, {s[3], group, s[2], s[1] / group, s[0]},
                   {t.strides[1], t.strides[2], t.strides[1] * group, t.strides[0]},
                   {chunk_of(t), heads, rows / heads, 1, 1});
}

}  // namespace attune::runtime::cuda

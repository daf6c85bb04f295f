// runtime/engines/cuda/maps.cpp — tensor maps (TMA descriptors) of a call's tensors
#include "runtime/engines/cuda/maps.h"

#include <array>
#include <cstdint>

#include "codegen/gpu_element.h"
#include "runtime/engines/cuda/driver.h"

namespace attune::runtime::cuda {
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

// runtime/cuda/maps.cpp — tensors of a call as the copy engine of Hopper takes them
#include "runtime/cuda/maps.h"

#include <array>
#include <cstdint>

#include "runtime/cuda/driver.h"

namespace attune::runtime::cuda {
namespace {

constexpr std::int64_t grain = 16, most_stride = std::int64_t{1} << 40, most_extent = std::int64_t{1} << 32;

/// Packed sequences follow one another along the positions of one batch entry.
Tensor dense(const Tensor& t) {
  Tensor out = t;
  if (t.rank != 3) return out;
  out.rank = 4;
  out.shape = {1, t.shape[1], t.shape[0], t.shape[2]};
  out.strides = {0, t.strides[1], t.strides[0], t.strides[2]};
  return out;
}

}  // namespace

bool has_boxes(const Tensor& of) {
  const Tensor t = dense(of);
  if (t.rank != 4 || t.strides[3] != 1 || reinterpret_cast<std::uintptr_t>(t.data) % grain != 0) return false;
  const auto bytes = static_cast<std::int64_t>(size_of(t.dtype));
  for (std::size_t i = 0; i < 4; ++i) {
    if (t.shape[i] < 1 || t.shape[i] > most_extent) return false;
    if (i == 3 || t.shape[i] == 1) continue;
    const std::int64_t stride = t.strides[i];
    if (stride <= 0 || stride >= most_stride / bytes || stride * bytes % grain != 0) return false;
  }
  return true;
}

TensorMap boxes_of(const Tensor& of, int rows) {
  const Tensor t = dense(of);
  const std::uint64_t bytes = size_of(t.dtype);
  std::array<std::uint64_t, 4> extents{};
  std::array<std::uint64_t, 3> strides{};
  for (std::size_t i = 0; i < 4; ++i) extents[i] = static_cast<std::uint64_t>(t.shape[3 - i]);
  for (std::size_t i = 0; i < 3; ++i)  // nobody steps along an extent of 1, and its stride may be anything
    strides[i] = extents[i + 1] == 1 ? grain : static_cast<std::uint64_t>(t.strides[2 - i]) * bytes;
  const std::array<std::uint32_t, 4> box{64, static_cast<std::uint32_t>(rows), 1, 1}, steps{1, 1, 1, 1};
  TensorMap map{};
  driver().cuTensorMapEncodeTiled(&map, t.dtype == DType::bf16 ? cu::Element::bf16 : cu::Element::f16, 4, t.data,
                                  extents.data(), strides.data(), box.data(), steps.data(), cu::Interleave::none,
                                  cu::Swizzle::b128, cu::Promote::b256, cu::Fill::zero);
  return map;
}

}  // namespace attune::runtime::cuda

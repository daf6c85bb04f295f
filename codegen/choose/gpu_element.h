// codegen/choose/gpu_element.h — what GPU kernels, their sources and tensor maps must know of an element type
#pragma once

#include <array>
#include <string_view>

#include <attune/tensor.h>

namespace attune::codegen {

/// Types of a tensor map's elements, with the numbers of CUtensorMapDataType.
enum class MapElement : int { byte = 0, f16 = 6, f32 = 7, bf16 = 9 };

/// An element type of q, k, v and o.
struct GpuElement {
  DType type;
  std::string_view source_name;  ///< in sources
  MapElement map;
  int bytes;
  int width_step;  ///< widths of tiles are multiples of this

  /// Elements of a 128-byte chunk, the widest box that TMA swizzles.
  int chunk() const { return 128 / bytes; }
};

inline constexpr std::array<GpuElement, 4> gpu_elements{{
    {.type = DType::bf16, .source_name = "bf16", .map = MapElement::bf16, .bytes = 2, .width_step = 16},
    {.type = DType::f16, .source_name = "f16", .map = MapElement::f16, .bytes = 2, .width_step = 16},
    {.type = DType::e4m3, .source_name = "e4m3", .map = MapElement::byte, .bytes = 1, .width_step = 32},
    {.type = DType::f32, .source_name = "float", .map = MapElement::f32, .bytes = 4, .width_step = 32},
}};

/// Null if GPU kernels do not support this type.
constexpr const GpuElement* find_gpu_element(DType type) {
  for (const GpuElement& one : gpu_elements)
    if (one.type == type) return &one;
  return nullptr;
}
[[noreturn]] void refuse_gpu_element(DType type);
/// The entry of a type that has been checked; throws a Bug for other types.
inline const GpuElement& gpu_element(DType type) {
  if (const GpuElement* found = find_gpu_element(type)) return *found;
  refuse_gpu_element(type);
}

}  // namespace attune::codegen

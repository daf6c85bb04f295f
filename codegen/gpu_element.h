// codegen/gpu_element.h — what GPU kernels, their sources and tensor maps must know of an element type
#pragma once

#include <string_view>

#include <attune/tensor.h>

namespace attune::codegen {

/// Types of a tensor map's elements, numbered as CUtensorMapDataType is.
enum class MapElement : int { byte = 0, f16 = 6, f32 = 7, bf16 = 9 };

/// An element type of q, k, v and o.
struct GpuElement {
  DType type;
  std::string_view source_name;  ///< in sources
  MapElement map;
  int bytes;
  int width_step;  ///< the widths of a tile are multiples of it

  /// Elements of a 128-byte chunk, the widest box that TMA swizzles.
  int chunk() const { return 128 / bytes; }
};

/// Null: GPU kernels have no such elements.
const GpuElement* find_gpu_element(DType type);
/// The trait of a type that was checked before; throws a Bug for any other.
const GpuElement& gpu_element(DType type);

}  // namespace attune::codegen

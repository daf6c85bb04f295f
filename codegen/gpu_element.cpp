// codegen/gpu_element.cpp — what GPU kernels, their sources and tensor maps must know of an element type
#include "codegen/gpu_element.h"

#include <algorithm>
#include <array>

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::codegen {
namespace {

constexpr std::array<GpuElement, 4> elements{{
    {.type = DType::bf16, .source_name = "bf16", .map = MapElement::bf16, .bytes = 2, .width_step = 16},
    {.type = DType::f16, .source_name = "f16", .map = MapElement::f16, .bytes = 2, .width_step = 16},
    {.type = DType::e4m3, .source_name = "e4m3", .map = MapElement::byte, .bytes = 1, .width_step = 32},
    {.type = DType::f32, .source_name = "float", .map = MapElement::f32, .bytes = 4, .width_step = 32},
}};

}  // namespace

const GpuElement* find_gpu_element(DType type) {
  const auto found = std::ranges::find(elements, type, &GpuElement::type);
  return found == elements.end() ? nullptr : &*found;
}

const GpuElement& gpu_element(DType type) {
  if (const GpuElement* found = find_gpu_element(type)) return *found;
  throw Bug(fmt::format("a GPU kernel was asked for elements of {}", name_of(type)));
}

}  // namespace attune::codegen

// codegen/cuda/emulated/ptx/mma.cuh — products of a warp
#pragma once

#include "codegen/cuda/contract/types.cuh"

namespace attune {

template <class Element>
constexpr emulated::Operands operands_of = emulated::Operands::bf16;
template <>
constexpr emulated::Operands operands_of<f16> = emulated::Operands::f16;
template <>
constexpr emulated::Operands operands_of<float> = emulated::Operands::tf32;
template <>
constexpr emulated::Operands operands_of<e4m3> = emulated::Operands::e4m3;

template <class Element>
inline void product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Site at = Site::here()) {
  emulated::Product mine{c, a, {b0, b1}};
  attune_machine->multiply(operands_of<Element>, &mine, at);
}

}  // namespace attune

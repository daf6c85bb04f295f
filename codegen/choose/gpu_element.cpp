// codegen/choose/gpu_element.cpp — what GPU kernels, their sources and tensor maps must know of an element type
#include "codegen/choose/gpu_element.h"

#include <attune/error.h>
#include <fmt/format.h>

namespace attune::codegen {

void refuse_gpu_element(DType type) {
  throw Bug(fmt::format("a GPU kernel was asked for elements of {}", name_of(type)));
}

}  // namespace attune::codegen

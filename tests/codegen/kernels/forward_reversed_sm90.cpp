// tests/codegen/kernels/forward_reversed_sm90.cpp — forward_sm90's descriptor under another name, for the device file
// that adds a key source
#include "tests/codegen/kernels/forward_reversed_sm90.h"

#include "tests/codegen/device_file.h"

namespace attune::tests {

codegen::KernelChoice reversed(codegen::KernelChoice choice) {
  static const std::string text = device_file("kernels/forward_reversed_sm90.cuh");
  static const codegen::Header file{"codegen/cuda/forward_sm90/forward_reversed_sm90.cuh", text.c_str()};
  static const codegen::KernelDescriptor kernel = [&] {
    codegen::KernelDescriptor out = *choice.plan.kernel;
    out.name = "forward_reversed_sm90";
    out.headers = {&file, 1};
    return out;
  }();
  choice.plan.kernel = &kernel;
  return choice;
}

}  // namespace attune::tests

// tests/codegen/kernels/forward_plain.h — a kernel that only tests have, and the list of kernels with it
#pragma once

#include "codegen/choose/kernels.h"

namespace attune::tests {

const codegen::KernelDescriptor& forward_plain();
/// This kernel, then the library's.
codegen::Kernels kernels_with_plain();

}  // namespace attune::tests

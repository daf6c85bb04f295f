// codegen/kernels.cpp — the list of GPU kernels: a row each
#include "codegen/kernels.h"

namespace attune::codegen {

// Each row declares a kernel, which codegen/kernels has in a file of this name, and lists it.
#define ATTUNE_KERNELS(ROW) \
  ROW(forward_sm90)         \
  ROW(forward_sm80)

#define ATTUNE_DECLARE(name) extern const KernelDescriptor name;
ATTUNE_KERNELS(ATTUNE_DECLARE)
#undef ATTUNE_DECLARE

Kernels kernels() {
#define ATTUNE_LIST(name) &name,
  static constexpr const KernelDescriptor* all[] = {ATTUNE_KERNELS(ATTUNE_LIST)};
#undef ATTUNE_LIST
  return all;
}

#undef ATTUNE_KERNELS

}  // namespace attune::codegen

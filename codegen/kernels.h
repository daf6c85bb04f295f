// codegen/kernels.h — the list of GPU kernels
#pragma once

#include <span>

#include "codegen/kernel.h"

namespace attune::codegen {

using Kernels = std::span<const KernelDescriptor* const>;

/// In the order to try: the fastest first, the one that takes any call last. Those of a whole backward do not take
/// every call: the others do what they leave.
Kernels kernels(Way way = Way::forward);

/// Puts a kernel before those of its way, for as long as it lives: so a test's kernel gets into calls. Of one at a
/// time, and while nothing else chooses.
class KernelBefore {
 public:
  explicit KernelBefore(const KernelDescriptor& kernel);
  ~KernelBefore();
  KernelBefore(const KernelBefore&) = delete;
  KernelBefore& operator=(const KernelBefore&) = delete;
};

}  // namespace attune::codegen

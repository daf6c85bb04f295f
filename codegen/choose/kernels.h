// codegen/choose/kernels.h — the list of GPU kernels
#pragma once

#include <span>

#include "codegen/choose/kernel.h"

namespace attune::codegen {

using Kernels = std::span<const KernelDescriptor* const>;

/// In the order to try: the fastest first; the last one takes any call. Kernels of a whole backward do not take every
/// call: the kernels of single gradients take the others.
Kernels kernels(Way way = Way::forward);

/// Puts a kernel before those of its way while this object lives, so that calls use a test's kernel. Only one object at
/// a time, and while no other thread chooses.
class KernelBefore {
 public:
  explicit KernelBefore(const KernelDescriptor& kernel);
  ~KernelBefore();
  KernelBefore(const KernelBefore&) = delete;
  KernelBefore& operator=(const KernelBefore&) = delete;
};

}  // namespace attune::codegen

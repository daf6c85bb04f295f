// runtime/engines/cuda/keys.h — the spec that selects a call's kernels: from its tensors, its sizes and its device
#pragma once

#include <span>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "runtime/engines/cuda/kernels.h"

namespace attune::runtime::cuda {

KernelKey forward_key(const Facts& device, const Call& of, const Means& means);

/// A captured tensor whose gradient is requested: all slots that hold the tensor.
struct Captured {
  const Tensor* into = nullptr;
  std::vector<std::uint32_t> slots;
  unsigned long long* sums = nullptr;  ///< in the workspace
};
std::vector<Captured> captured_of(const compiler::Args& args, const Backward& call);
codegen::Wanted wanted_of(const Call& of, std::span<const Captured> captured);
/// What the kernels of a backward are chosen by. `captured`: from captured_of().
codegen::CallSpec backward_call_spec(const Facts& device, const Call& of, std::span<const Captured> captured);
KernelKey backward_key(codegen::Way way, const Facts& device, const Call& of, const codegen::CallSpec& asked,
                       const Means& means);

}  // namespace attune::runtime::cuda

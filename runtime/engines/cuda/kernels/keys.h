// runtime/engines/cuda/kernels/keys.h — the spec that selects a call's kernels: from its tensors, its sizes and its
// device, which need not be in this machine
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codegen/choose/call_choices.h"
#include "runtime/engines/call.h"
#include "runtime/engines/cuda/kernels/kernels.h"

namespace attune::runtime::cuda {

/// What the kernel of a forward is chosen by.
codegen::CallSpec forward_call_spec(const Facts& device, const Call& of, const Means& means);
inline KernelKey forward_key(const Facts& device, const Call& of, const Means& means) {
  return {.device = device.index, .call = forward_call_spec(device, of, means), .mod = of.mod.digest};
}

/// A captured tensor whose gradient is requested: all slots that hold the tensor.
struct Captured {
  const Tensor* into = nullptr;
  std::vector<std::uint32_t> slots;
  unsigned long long* sums = nullptr;  ///< in the workspace
};
std::vector<Captured> captured_of(const compiler::Args& args, const Backward& call);
codegen::Wanted wanted_of(const Call& of, std::span<const Captured> captured);

/// A gradient that can be made of dS, pair by pair.
struct DenseGradient {
  const Captured* of = nullptr;
  std::uint32_t slot = 0;                          ///< of `of`: the one that the score reads
  Tensor as_pairs;                                 ///< the gradient as [batch, head, query, key]
  std::array<std::int64_t, 4> groups{1, 1, 1, 1};  ///< how many of each share an element
  std::array<std::int64_t, 4> before{};            ///< how many come before the call's, of a part of another call
  bool one_each = false;                           ///< each pair has an element of its own, and there are no others
  bool is_ds = false;                              ///< dS is stored straight into it
};
/// The gradient of this term's tensor; none if it has fewer elements than pairs read, or other terms.
std::optional<DenseGradient> dense_gradient(const Call& of, std::span<const Captured> captured,
                                            const codegen::DsTerm& term);

/// What the kernels of a backward are chosen by. `captured`: from captured_of().
codegen::CallSpec backward_call_spec(const Facts& device, const Call& of, std::span<const Captured> captured,
                                     const Means& means);

}  // namespace attune::runtime::cuda

namespace attune::runtime {

/// The CallSpec of a call with these tensors on a GPU of compute capability arch / 10. Throws an Error if the tensors
/// do not agree. Reads the data of cu_seqlens, kv_len and q_offsets only, and only on the host; other tensors need no
/// memory.
codegen::CallSpec call_spec(const compiler::LoweredMod& lowered, const What& asked, int arch,
                            std::optional<bool> exact = {});

}  // namespace attune::runtime

// python/core/torch_recorded.h — attentions whose gradients torch's own autograd records, without Python
#pragma once

#include <nanobind/nanobind.h>

#include "python/core/handle.h"

namespace attune::python {

/// Fills aten::_scaled_dot_product_fused_attention_overrideable and its backward for the CPU and for CUDA. Torch has
/// these operators for devices outside of it, with an autograd node in C++, and no kernels on these two. `op`: the
/// operator; `function`: torch's own function for aten::_scaled_dot_product_efficient_attention, which is filled for
/// the CPU as well and takes less time than `op`, or None; `hooks`: torch's function that gives the hooks of saved
/// tensors; `from_dlpack`: torch's; `address_of`: as of find_shim. False if the loaded torch has no stable ABI; then
/// there are no RecordedCalls.
bool record_torch(nb::handle op, nb::handle function, nb::handle hooks, nb::handle from_dlpack, nb::handle address_of);

/// A call without its tensors.
class RecordedCall {
 public:
  RecordedCall(Handle& handle, const nb::tuple& ints);

  /// The output, with its gradients' node. Or a str, as of `attend`: Python must make the call. That is also so for
  /// tensors whose elements do not touch, and where saved tensors have hooks.
  nb::object attend(nb::handle q, nb::handle k, nb::handle v) const;

 private:
  nb::object keeper_;  ///< a tensor that owns what the gradients need: the graph saves it
};

}  // namespace attune::python

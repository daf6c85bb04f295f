// python/core/torch_recorded.h — calls whose gradients torch's own autograd records, without Python
#pragma once

#include <nanobind/nanobind.h>

#include <array>

#include "python/core/torch_call.h"

namespace attune::python {

/// How torch's own autograd records calls. `op`: an operator of recorded calls; `efficient`: torch's function for the
/// one that the CPU has as well, which takes less time, or None; `hooks`: its function that gives the hooks of saved
/// tensors; `from_dlpack`: torch's.
void record_by(nb::object op, nb::object efficient, nb::object hooks, nb::object from_dlpack);

/// The output of a call, recorded by torch's own autograd. Not valid if that cannot be. `keeper`: a tensor that owns
/// the entry, which the graph saves; made where it is not valid.
nb::object record(const std::array<nb::handle, 3>& qkv, nb::object& keeper, const Entry& entry, bool on_gpu);

/// The entry in a tensor that comes to an operator as its attn_bias; throws for any other tensor.
const Entry& entry_in(Shim::Tensor keeper);

}  // namespace attune::python

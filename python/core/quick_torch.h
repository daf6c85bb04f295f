// python/core/quick_torch.h — small calls on torch's tensors of the CPU, without what Python would add to them
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>

#include "python/core/handle.h"

namespace attune::python {

/// Finds torch, before the other functions are called. `output` is called with q and v for outputs that
/// torch.empty_like of q does not make.
void find_torch(nb::handle output);

/// Are they memory as it is: of no subclass, and without a sign that torch keeps beside the memory?
bool plain(const nb::args& tensors);

/// The output, the logarithm of the sum and the largest score; None for those that are not wanted. Where Python must
/// make the call, a str that says why: "special", a tensor is more than its memory; "elsewhere", on a device; "large";
/// "shape"; or "mistake". Neither modes nor gradients of torch are looked at.
nb::object attend(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& captures,
                  const nb::tuple& ints, bool with_lse, bool with_max);

/// The gradients for which `wanted` from `first` on is true, after `first` times None, or a str as above. `saved`:
/// q, k, v, the output, the logarithm of the sum, the captured tensors.
nb::object gradients(const Handle& handle, nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved,
                     const nb::tuple& ints, const nb::tuple& wanted, std::size_t first);

}  // namespace attune::python

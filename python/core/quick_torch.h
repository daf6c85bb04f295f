// python/core/quick_torch.h — the fast path of dense calls on torch's tensors, without Python's overhead
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>

#include "python/core/handle.h"

namespace attune::python {

struct AttendWith {
  bool with_lse, with_max;
  bool recorded;  ///< gradients will be wanted: the first call of a kind starts to compile their kernels too
};

/// The output, the lse and the largest score; None for each that is not wanted. If Python must make the call, a str
/// says why: "special" (a tensor is more than its memory), "elsewhere" (on an unknown device), "large" (so long on the
/// host that it listens to Ctrl-C), "shape" or "mistake". Ignores torch's modes and gradients.
nb::object attend(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& captures,
                  const nb::tuple& ints, AttendWith with);

/// The same over a cache of keys and values. `cache`: kv_len, page_table, q_offsets, o_before and lse_before, None for
/// each that is not given. The output, the lse, and None.
nb::object attend_cache(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& cache,
                        const nb::tuple& captures, const nb::tuple& ints);

/// `first` times None, then the gradients, None where `wanted` (also from `first` on) is false; or a str as above.
/// `saved`: q, k, v, the output, the lse, the captured tensors.
nb::object gradients(const Handle& handle, nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved,
                     const nb::tuple& ints, const nb::tuple& wanted, std::size_t first);

}  // namespace attune::python

// python/core/exchange.h — the functions with which a library shows its tensors without a capsule, as DLPack has them
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// DLPack's table of functions, of which attune calls two. 0 is success.
struct Exchange {
  std::uint32_t major, minor;
  Exchange* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  /// The shape and the strides that it gives are the tensor's own.
  int (*tensor_from_object)(void* object, attune_tensor* out);
  int (*current_stream)(int device_type, std::int32_t device, void** out);
};

/// Those of a type, or null. A thread remembers the last types that it met: looking the attribute up takes longer than
/// reading the tensor.
const Exchange* exchange_of(PyTypeObject* type);

}  // namespace attune::python

// python/core/exchange.h — DLPack's exchange functions, by which a library shows its tensors without a capsule
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include <attune/c.h>

namespace attune::python {

namespace nb = nanobind;

/// DLPack's table of functions; attune calls two of them. 0 is success.
struct Exchange {
  std::uint32_t major, minor;
  Exchange* previous;
  void *allocate, *managed_from_object, *managed_to_object;
  /// The returned shape and strides point into the tensor itself.
  int (*tensor_from_object)(void* object, attune_tensor* out);
  int (*current_stream)(int device_type, std::int32_t device, void** out);
};

/// The functions of a type, or null. Each thread caches the last types: looking up the attribute takes longer than
/// reading the tensor.
const Exchange* exchange_of(PyTypeObject* type);

}  // namespace attune::python

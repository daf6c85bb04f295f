// python/core/borrowed.h — a Python object as a tensor of attune/c.h while it lives; its library's exchange functions
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>

#include <attune/c.h>

#include "python/core/raised.h"

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

/// DLPack's managed tensor.
struct Managed {
  attune_tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};
/// A capsule whose tensor one consumer may take. If none has, the capsule's end calls the tensor's deleter.
nb::object capsule_of(Managed* managed);

/// The functions of a type, or null. Each thread caches the last types: looking up the attribute takes longer than
/// reading the tensor.
const Exchange* exchange_of(PyTypeObject* type);

/// Memory of a Python array, read by the buffer protocol (NumPy), by DLPack's exchange functions (torch), by NumPy's or
/// CUDA's array interface, or by DLPack's capsules. Made and destroyed with the GIL.
class Borrowed : Pinned {
 public:
  ~Borrowed() { release(); }

  /// `name` is what messages call it. `stream` is where the memory will be used, if it is a device's. A tensor that
  /// records gradients is refused.
  void take(nb::handle object, const char* name, bool written, void* stream);
  /// Null if no array was taken.
  const attune_tensor* tensor() const { return given_ ? &tensor_ : nullptr; }

 private:
  static constexpr int most = 16;  // dimensions; attune refuses more than four by name
  void release();
  bool by_buffer(nb::handle object, const char* name, bool written);
  bool by_exchange(nb::handle object, const char* name, void* stream);
  void by_interface(nb::handle interface, const char* name, bool written, bool cuda, nb::handle object);
  void read_interface(const nb::dict& fields, const char* name, bool written, nb::handle object);
  void by_dlpack(nb::handle object, const char* name, void* stream);
  void set_rank(std::size_t rank, const char* name);
  void set_byte_stride(int i, std::int64_t stride, const char* name);

  attune_tensor tensor_{};
  std::array<std::int64_t, most> shape_{}, strides_{};
  bool given_ = false, viewed_ = false;
  Py_buffer view_{};
  nb::object capsule_{};  // of DLPack, not consumed: its own destructor frees it
  nb::object kept_{};
};

}  // namespace attune::python

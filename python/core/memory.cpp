// python/core/memory.cpp — memory that the library allocates, exported by DLPack
#include "python/core/memory.h"

#include <cstring>

#include "python/core/borrowed.h"
#include "python/core/raised.h"

namespace attune::python {
namespace {

/// DLPack's managed tensor.
struct Managed {
  attune_tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

}  // namespace

nb::object exported(nb::object self) {
  auto* managed = new Managed{*nb::cast<const Memory&>(self).tensor, nb::object(self).release().ptr(), nullptr};
  managed->deleter = [](Managed* done) {
    const Acquired gil;
    if (!gil) return;
    nb::steal(static_cast<PyObject*>(done->context)).reset();
    delete done;
  };
  return nb::steal(PyCapsule_New(managed, "dltensor", [](PyObject* capsule) {
    if (std::strcmp(PyCapsule_GetName(capsule), "dltensor") != 0) return;  // a consumer has taken it
    auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(capsule, "dltensor"));
    unused->deleter(unused);
  }));
}

nb::object empty(nb::handle like, const std::vector<std::int64_t>& shape, bool f32) {
  Borrowed from;
  from.take(like, "q", false, nullptr);
  attune_tensor wanted = *from.tensor();
  std::vector<std::int64_t> extents = shape;
  wanted.ndim = static_cast<std::int32_t>(shape.size());
  wanted.shape = extents.data();
  wanted.strides = nullptr;
  if (f32) wanted.dtype = {ATTUNE_FLOAT, 32, 1};
  attune_tensor* made = nullptr;
  check(attune_alloc(&wanted, &made));
  return nb::cast(new Memory(made), nb::rv_policy::take_ownership);
}

}  // namespace attune::python

// python/core/exchange.cpp — DLPack's exchange functions, by which a library shows its tensors without a capsule
#include "python/core/exchange.h"

#include <array>
#include <cstddef>

namespace attune::python {

const Exchange* exchange_of(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type = nullptr;  // a reference that is never released
    const Exchange* functions = nullptr;
  };
  thread_local std::array<Known, 4> known{};
  thread_local std::size_t oldest = 0;
  for (const Known& k : known)
    if (k.type == type) return k.functions;
  const Exchange* functions = nullptr;
  const auto object = nb::handle(reinterpret_cast<PyObject*>(type));
  if (nb::hasattr(object, "__dlpack_c_exchange_api__")) {
    const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
    if (PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
      functions = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    while (functions && functions->major > 1) functions = functions->previous;
    if (functions && !functions->tensor_from_object) functions = nullptr;
  }
  known[oldest] = {type, functions};
  oldest = (oldest + 1) % known.size();
  Py_INCREF(object.ptr());
  return functions;
}

}  // namespace attune::python

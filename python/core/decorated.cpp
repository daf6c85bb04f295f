// python/core/decorated.cpp — the type attune._core.Quick
#include "python/core/decorated.h"

#include <cstddef>
#include <structmember.h>

namespace attune::python {
namespace {

/// A Python object that wraps a function. Only calls are intercepted: attributes, class and binding to an object are
/// the function's.
struct Decorated {
  PyObject object;
  vectorcallfunc call;
  PyObject *function, *weak;
};

/// Attribute access on a class gives the function itself; on an object, the function bound to the object.
PyObject* get(PyObject* self, PyObject* object, PyObject* type) {
  if (!object) return Py_NewRef(decorated_function(self));
  return PyObject_CallMethod(decorated_function(self), "__get__", "OO", object, type ? type : Py_None);
}

PyObject* get_attribute(PyObject* self, PyObject* name) {
  const bool own = PyUnicode_CompareWithASCIIString(name, "__reduce_ex__") == 0;
  return own ? PyObject_GenericGetAttr(self, name) : PyObject_GetAttr(decorated_function(self), name);
}

int set_attribute(PyObject* self, PyObject* name, PyObject* value) {
  return PyObject_SetAttr(decorated_function(self), name, value);
}

/// Pickled and copied by name, like functions.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(decorated_function(self), "__qualname__"); }

PyObject* repr(PyObject* self) { return PyObject_Repr(decorated_function(self)); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(decorated_function(self));
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Decorated*>(self)->function);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (reinterpret_cast<Decorated*>(self)->weak) PyObject_ClearWeakRefs(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyTypeObject* decorated_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Decorated, call), READONLY, nullptr},
                                  {"__weaklistoffset__", T_PYSSIZET, offsetof(Decorated, weak), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  // pydoc looks past get_attribute.
  static PyGetSetDef computed[] = {
      {"__doc__", [](PyObject* self, void*) { return PyObject_GetAttrString(decorated_function(self), "__doc__"); },
       nullptr, nullptr, nullptr},
      {nullptr, nullptr, nullptr, nullptr, nullptr}};
  static PyMethodDef methods[] = {{"__reduce_ex__", reduce, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(get)},
                                {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                                {Py_tp_setattro, reinterpret_cast<void*>(set_attribute)},
                                {Py_tp_repr, reinterpret_cast<void*>(repr)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_members, members},
                                {Py_tp_getset, computed},
                                {Py_tp_methods, methods},
                                {0, nullptr}};
  static PyType_Spec spec = {
      "attune._core.Quick", sizeof(Decorated), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

}  // namespace

PyObject* decorated_function(PyObject* self) { return reinterpret_cast<Decorated*>(self)->function; }

nb::object decorated(vectorcallfunc call, nb::handle function) {
  auto* const made = PyObject_GC_New(Decorated, decorated_type());
  if (!made) throw nb::python_error();
  made->call = call;
  made->function = Py_NewRef(function.ptr());
  made->weak = nullptr;
  PyObject_GC_Track(made);
  return nb::steal(reinterpret_cast<PyObject*>(made));
}

}  // namespace attune::python

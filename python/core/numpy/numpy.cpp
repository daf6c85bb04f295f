// python/core/numpy/numpy.cpp — NumPy arrays, read directly from their struct
#include "python/core/numpy/numpy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "python/core/borrowed.h"

namespace attune::python {
namespace {

/// The head of numpy.ndarray: NumPy's C ABI since 1.7, also in NumPy 2. An element type is read this way only after one
/// array of the type looked the same through the buffer protocol or the array interface.
struct Head {
  PyObject object;
  char* data;
  int rank;
  Py_ssize_t *shape, *strides;  // strides in bytes
  PyObject *base, *dtype;
  int flags;
};
constexpr int is_contiguous = 0x1, is_writeable = 0x400;

/// NumPy's objects and element types, known once NumPy is imported. All are kept until the process ends.
struct Numpy {
  PyObject *ndarray = nullptr, *float32 = nullptr;
  void** functions = nullptr;  // of its C API
  struct Type {
    PyObject* dtype;
    attune_dtype is;
  };
  std::array<Type, 32> types{};  // more are read by protocol
  std::size_t count = 0;
};
Numpy numpy;

/// PyArray_NewFromDescr of NumPy's C API, whose table never moves entries. Takes a quarter of the time of numpy.empty.
/// It steals a reference to `dtype`.
PyObject* new_array(PyObject* dtype, int rank, const std::int64_t* shape) {
  using Make = PyObject* (*)(PyObject*, PyObject*, int, const Py_ssize_t*, const Py_ssize_t*, void*, int, PyObject*);
  static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t));
  Py_ssize_t extents[4];
  std::copy_n(shape, rank, extents);
  return reinterpret_cast<Make>(numpy.functions[94])(numpy.ndarray, Py_NewRef(dtype), rank, extents, nullptr, nullptr,
                                                     0, nullptr);
}

bool find_numpy() {
  if (numpy.ndarray) return true;
  const nb::object name = nb::steal(PyUnicode_FromString("numpy"));
  const nb::object module = nb::steal(PyImport_GetModule(name.ptr()));
  if (!module.is_valid()) {
    PyErr_Clear();
    return false;
  }
  try {
    const nb::object float32 = module.attr("dtype")("float32"), ndarray = module.attr("ndarray");
    const nb::object inner = nb::module_::import_(nb::hasattr(module, "_core") ? "numpy._core._multiarray_umath"
                                                                               : "numpy.core._multiarray_umath");
    numpy.functions = static_cast<void**>(PyCapsule_GetPointer(inner.attr("_ARRAY_API").ptr(), nullptr));
    if (!numpy.functions) throw nb::python_error();
    numpy.float32 = nb::object(float32).release().ptr();
    numpy.ndarray = nb::object(ndarray).release().ptr();
    return true;
  } catch (nb::python_error&) {
    return false;  // NumPy is being imported
  }
}

bool same(const Head& head, const attune_tensor& shown) {
  if (shown.data != head.data || shown.byte_offset != 0 || shown.ndim != head.rank) return false;
  bool empty = false;
  for (int i = 0; i < head.rank; ++i) empty |= head.shape[i] == 0;
  for (int i = 0; i < head.rank; ++i) {
    if (shown.shape[i] != head.shape[i]) return false;
    // For an extent of 1, protocols report different strides.
    if (!empty && head.shape[i] > 1 && shown.strides[i] * (shown.dtype.bits / 8) != head.strides[i]) return false;
  }
  return true;
}

/// The type of an array's elements: known, or learned from this array.
std::optional<attune_dtype> type_of(const Head& head, nb::handle array) {
  for (std::size_t i = 0; i < numpy.count; ++i)
    if (numpy.types[i].dtype == head.dtype) return numpy.types[i].is;
  if (numpy.count == numpy.types.size()) return std::nullopt;
  Borrowed shown;
  try {
    shown.take(array, "array", false, nullptr);
  } catch (nb::python_error&) {
    return std::nullopt;  // refused later, by name
  }
  if (!same(head, *shown.tensor())) return std::nullopt;
  Py_INCREF(head.dtype);
  return (numpy.types[numpy.count++] = {head.dtype, shown.tensor()->dtype}).is;
}

}  // namespace

bool NumpyTensor::read(nb::handle array) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != numpy.ndarray) {
    if (numpy.ndarray || !find_numpy() || reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) != numpy.ndarray)
      return false;
  }
  const Head& head = *reinterpret_cast<const Head*>(array.ptr());
  if (head.rank > 4) return false;
  const auto type = type_of(head, array);
  if (!type) return false;
  tensor_.data = head.data;
  tensor_.device = {ATTUNE_CPU, 0};
  tensor_.ndim = head.rank;
  tensor_.dtype = *type;
  tensor_.shape = shape_;
  tensor_.strides = strides_;
  tensor_.byte_offset = 0;
  const Py_ssize_t bytes = type->bits / 8;
  for (int i = 0; i < head.rank; ++i) {
    if (head.strides[i] % bytes != 0) return false;
    shape_[i] = head.shape[i];
    strides_[i] = head.strides[i] / bytes;
  }
  writeable_ = head.flags & is_writeable;
  contiguous_ = head.flags & is_contiguous;
  dtype_ = head.dtype;
  return true;
}

bool NumpyTensor::make(const std::int64_t* shape, int rank, const NumpyTensor* like, nb::object& into) {
  if (!numpy.functions) return false;
  into = nb::steal(new_array(like ? like->dtype_ : numpy.float32, rank, shape));
  if (into.is_valid()) return read(into);
  PyErr_Clear();
  return false;
}

char NumpyTensor::kind() const {
  switch (tensor_.dtype.code) {
    case ATTUNE_FLOAT:
    case ATTUNE_BFLOAT:
    case ATTUNE_E4M3: return 'f';
    case ATTUNE_BOOL: return 'b';
    default: return 'i';
  }
}

}  // namespace attune::python

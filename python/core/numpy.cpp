// python/core/numpy.cpp — arrays of NumPy, read where they lie
#include "python/core/numpy.h"

#include <array>
#include <cstring>
#include <optional>

#include "python/core/borrowed.h"

namespace attune::python {
namespace {

/// The head of numpy.ndarray: NumPy's C ABI since 1.7, in 2 as well. It is trusted for a type of elements after an
/// array of that type looked the same by the buffer protocol or the array interface.
struct Head {
  PyObject object;
  char* data;
  int rank;
  Py_ssize_t *shape, *strides;  // strides in bytes
  PyObject *base, *dtype;
  int flags;
};
constexpr int is_contiguous = 0x1, is_writeable = 0x400;

/// What is known of NumPy, once it is imported. All is kept to the end of the process.
struct Numpy {
  PyObject *ndarray = nullptr, *empty = nullptr, *float32 = nullptr;
  struct Type {
    PyObject* dtype;
    attune_dtype is;
  };
  std::array<Type, 32> types{};  // more are read by protocol
  std::size_t count = 0;
};
Numpy numpy;

bool find_numpy() {
  if (numpy.ndarray) return true;
  const nb::object name = nb::steal(PyUnicode_FromString("numpy"));
  const nb::object module = nb::steal(PyImport_GetModule(name.ptr()));
  if (!module.is_valid()) {
    PyErr_Clear();
    return false;
  }
  try {
    const nb::object float32 = module.attr("dtype")("float32"), empty = module.attr("empty"),
                     ndarray = module.attr("ndarray");
    numpy.float32 = nb::object(float32).release().ptr();
    numpy.empty = nb::object(empty).release().ptr();
    numpy.ndarray = nb::object(ndarray).release().ptr();
    return true;
  } catch (nb::python_error&) {
    return false;  // it is being imported
  }
}

bool same(const Head& head, const attune_tensor& shown) {
  if (shown.data != head.data || shown.byte_offset != 0 || shown.ndim != head.rank) return false;
  bool empty = false;
  for (int i = 0; i < head.rank; ++i) empty |= head.shape[i] == 0;
  for (int i = 0; i < head.rank; ++i) {
    if (shown.shape[i] != head.shape[i]) return false;
    // Along one element, strides are told in different ways.
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
    return std::nullopt;  // it is refused with its name later
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
  if (!numpy.empty) return false;
  const nb::object extents = nb::steal(PyTuple_New(rank));
  for (int i = 0; i < rank; ++i) PyTuple_SetItem(extents.ptr(), i, PyLong_FromLongLong(shape[i]));
  PyObject* const given[] = {extents.ptr(), like ? like->dtype_ : numpy.float32};
  into = nb::steal(PyObject_Vectorcall(numpy.empty, given, 2, nullptr));
  if (into.is_valid()) return read(into);
  PyErr_Clear();
  return false;
}

char NumpyTensor::kind() const {
  switch (tensor_.dtype.code) {
    case ATTUNE_FLOAT:
    case ATTUNE_BFLOAT: return 'f';
    case ATTUNE_BOOL: return 'b';
    default: return 'i';
  }
}

}  // namespace attune::python

// python/core/quick.cpp — the usual call on NumPy's arrays, without what Python would add to it
#include "python/core/quick.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <structmember.h>

#include "python/core/numpy.h"

namespace attune::python {
namespace {

HandleOf find_handle = nullptr;

// More captures or parameters than these are bound by Python.
constexpr std::size_t most = 8;
// Scores: a call of more looks for signals meanwhile, which Python sets up. The same number is in _attention.py.
constexpr double slow = 1 << 22;

PyObject* word(const char* text) { return PyUnicode_InternFromString(text); }

struct Words {
  PyObject *core = word("_core"), *arrays = word("_arrays"), *params = word("_params"), *value = word("_value"),
           *out = word("out"), *lse = word("lse"), *max = word("max"), *q_offset = word("q_offset");
  /// Options that are Python's to handle, unless they are what they are by themselves: None or 0.
  PyObject* others[11] = {word("cu_seqlens"), word("cu_seqlens_q"), word("cu_seqlens_kv"), word("max_q_len"),
                          word("max_kv_len"), word("cover"),        word("workspace"),     word("stream"),
                          word("workers"),    word("progress"),     word("parallel_for")};
  PyObject* zero = PyLong_FromLong(0);  // the one 0 of CPython
};
const Words& words() {
  static const Words all;
  return all;
}

/// What is asked of `lse` or `max`: nothing, True, or an array to write.
struct Asked {
  bool wanted = false;
  nb::object array{};
  NumpyTensor tensor;

  /// The tensor to write; null where none is wanted, or where `failed` becomes true.
  const attune_tensor* of(const NumpyTensor& q, bool& failed) {
    if (!wanted) return nullptr;
    failed |= array.is_valid() ? !tensor.read(array) || !tensor.writeable()
                               : !tensor.make(q.tensor().shape, q.tensor().ndim - 1, nullptr, array);
    return &tensor.tensor();
  }
};

bool number(nb::handle given, char kind, double& into) {
  if (PyFloat_CheckExact(given.ptr()) && kind == 'f') {
    into = PyFloat_AsDouble(given.ptr());
  } else if (PyLong_CheckExact(given.ptr())) {
    into = PyLong_AsDouble(given.ptr());
  } else {
    return false;
  }
  if (!PyErr_Occurred()) return true;
  PyErr_Clear();
  return false;
}

/// One call. Null without an exception: Python has to make it.
class Quick {
 public:
  Quick(nb::handle self, nb::handle q, nb::handle k, nb::handle v) : self_(self), given_{q, k, v} {}

  PyObject* run(PyObject* const* values, PyObject* names) {
    core_ = attribute(self_, words().core);
    handle_ = core_.is_valid() ? find_handle(core_) : nullptr;
    if (!handle_ || handle_->captures.size() > most || handle_->params.size() > most) return nullptr;
    if (!q_.read(given_[0]) || !k_.read(given_[1]) || !v_.read(given_[2])) return nullptr;
    if (q_.tensor().ndim != 4 || k_.tensor().ndim != 4 || v_.tensor().ndim != 4) return nullptr;
    double scores = static_cast<double>(k_.tensor().shape[2]);
    for (int i = 0; i < 3; ++i) scores *= static_cast<double>(q_.tensor().shape[i]);
    if (scores > slow) return nullptr;
    if (names && !options(values, names)) return nullptr;
    if (!bind() || !make_out()) return nullptr;
    call_.size = sizeof call_;
    call_.q = &q_.tensor(), call_.k = &k_.tensor(), call_.v = &v_.tensor(), call_.o = &out_.tensor();
    bool failed = false;
    call_.lse = lse_.of(q_, failed), call_.max = max_.of(q_, failed);
    if (failed) return nullptr;
    call_.captures = captures_, call_.n_captures = handle_->captures.size();
    call_.params = numbers_, call_.n_params = handle_->params.size();
    attune_error* error = nullptr;
    Py_BEGIN_ALLOW_THREADS;
    error = attune_run(handle_->attention, &call_, nullptr);
    Py_END_ALLOW_THREADS;
    if (error) {
      attune_error_free(error);  // Python makes the call again, and tells where the mistake is
      return nullptr;
    }
    return results();
  }

 private:
  static nb::object attribute(nb::handle of, PyObject* name) {
    PyObject* const found = PyObject_GetAttr(of.ptr(), name);
    if (!found) PyErr_Clear();
    return nb::steal(found);
  }

  bool options(PyObject* const* values, PyObject* names) {
    const Words& w = words();
    const Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const name = PyTuple_GetItem(names, i);
      const nb::handle value = values[i];
      if (name == w.out) {
        if (!value.is_none()) made_ = nb::borrow(value);
      } else if (name == w.lse || name == w.max) {
        Asked& asked = name == w.lse ? lse_ : max_;
        asked.wanted = value.ptr() != Py_False;
        if (asked.wanted && value.ptr() != Py_True) asked.array = nb::borrow(value);
      } else if (name == w.q_offset) {
        if (!PyLong_CheckExact(value.ptr())) return false;
        const long offset = PyLong_AsLong(value.ptr());
        if (offset < 0 || offset > INT32_MAX) {
          PyErr_Clear();
          return false;
        }
        call_.q_offset = static_cast<std::int32_t>(offset);
      } else if (std::ranges::find(w.others, name) != std::end(w.others)) {
        if (!value.is_none() && value.ptr() != w.zero) return false;
      } else if (!rebind(name, value)) {
        return false;
      }
    }
    return true;
  }

  bool rebind(PyObject* name, nb::handle value) {
    for (std::size_t i = 0; i < handle_->captures.size(); ++i)
      if (handle_->captures[i].word.ptr() == name) return take_capture(i, value);
    for (std::size_t i = 0; i < handle_->params.size(); ++i)
      if (handle_->params[i].word.ptr() == name) return take_param(i, value);
    return false;
  }

  bool take_capture(std::size_t i, nb::handle array) {
    NumpyTensor& tensor = captured_[i];
    if (!tensor.read(array) || tensor.kind() != handle_->captures[i].kind ||
        tensor.tensor().ndim != handle_->captures[i].rank)
      return false;
    captures_[i] = &tensor.tensor();
    return true;
  }

  bool take_param(std::size_t i, nb::handle value) {
    bound_params_ |= 1u << i;
    return number(value, handle_->params[i].kind, numbers_[i]);
  }

  /// Captures and parameters that the call does not give are those of the Attention.
  bool bind() {
    if (!handle_->captures.empty()) {
      kept_arrays_ = attribute(self_, words().arrays);
      if (!kept_arrays_.is_valid() || !PyTuple_CheckExact(kept_arrays_.ptr())) return false;
      for (std::size_t i = 0; i < handle_->captures.size(); ++i)
        if (!captures_[i] && !take_capture(i, PyTuple_GetItem(kept_arrays_.ptr(), static_cast<Py_ssize_t>(i))))
          return false;
    }
    if (handle_->params.empty()) return true;
    const nb::object params = attribute(self_, words().params);
    if (!params.is_valid() || !PyTuple_CheckExact(params.ptr())) return false;
    for (std::size_t i = 0; i < handle_->params.size(); ++i) {
      if (bound_params_ & (1u << i)) continue;
      const nb::object value = attribute(PyTuple_GetItem(params.ptr(), static_cast<Py_ssize_t>(i)), words().value);
      if (!value.is_valid() || !take_param(i, value)) return false;
    }
    return true;
  }

  bool make_out() {
    if (made_.is_valid()) return out_.read(made_) && out_.writeable();
    const std::int64_t* const q = q_.tensor().shape;
    const std::int64_t shape[4] = {q[0], q[1], q[2], v_.tensor().shape[3]};
    // A result of q's shape lies as q does.
    if (shape[3] == q[3] && !q_.contiguous()) return false;
    return out_.make(shape, 4, &q_, made_);
  }

  PyObject* results() {
    if (!lse_.wanted && !max_.wanted) return made_.release().ptr();
    PyObject* const all = PyTuple_New(1 + lse_.wanted + max_.wanted);
    Py_ssize_t at = 0;
    PyTuple_SetItem(all, at++, made_.release().ptr());
    for (Asked* one : {&lse_, &max_})
      if (one->wanted) PyTuple_SetItem(all, at++, one->array.release().ptr());
    return all;
  }

  nb::handle self_, given_[3];
  nb::object core_{}, kept_arrays_{}, made_{};
  const Handle* handle_ = nullptr;
  NumpyTensor q_, k_, v_, out_;
  Asked lse_{}, max_{};
  NumpyTensor captured_[most];
  const attune_tensor* captures_[most]{};
  double numbers_[most]{};
  unsigned bound_params_ = 0;
  attune_call call_{};
};

/// The object of Python that `quick` gives.
struct Decorated {
  PyObject object;
  vectorcallfunc call;
  PyObject* function;
};

PyObject* called(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 4)
    if (PyObject* const made = Quick(args[0], args[1], args[2], args[3]).run(args + count, names)) return made;
  return PyObject_Vectorcall(reinterpret_cast<Decorated*>(self)->function, args, flags, names);
}

/// Of a class it is the function, of an object the function bound to it: what one looks at is Python.
PyObject* get(PyObject* self, PyObject* object, PyObject* type) {
  PyObject* const function = reinterpret_cast<Decorated*>(self)->function;
  if (!object) return Py_NewRef(function);
  return PyObject_CallMethod(function, "__get__", "OO", object, type ? type : Py_None);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<Decorated*>(self)->function);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(reinterpret_cast<Decorated*>(self)->function);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyTypeObject* decorated_type() {
  static PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(Decorated, call), READONLY, nullptr},
                                  {nullptr, 0, 0, 0, nullptr}};
  static PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_descr_get, reinterpret_cast<void*>(get)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                                {Py_tp_members, members},
                                {0, nullptr}};
  static PyType_Spec spec = {
      "attune._core.Quick", sizeof(Decorated), 0,
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, slots};
  static auto* const type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return type;
}

}  // namespace

void add_quick(nb::module_& m, HandleOf handle_of) {
  find_handle = handle_of;
  m.def("quick", [](nb::handle function) {
    auto* const made = PyObject_GC_New(Decorated, decorated_type());
    if (!made) throw nb::python_error();
    made->call = called;
    made->function = Py_NewRef(function.ptr());
    PyObject_GC_Track(made);
    return nb::steal(reinterpret_cast<PyObject*>(made));
  });
}

}  // namespace attune::python

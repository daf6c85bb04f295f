// python/core/numpy/quick.cpp — the fast path of common calls on NumPy arrays, without Python's overhead
#include "python/core/library.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <structmember.h>
#include <utility>

#include "python/core/gil.h"
#include "python/core/numpy/numpy.h"
#include "python/core/numpy/recall.h"

namespace attune::python {
namespace {

namespace nb = nanobind;

/// A Python object that wraps a function and intercepts its calls.
struct Decorated {
  PyObject object;
  vectorcallfunc call;
  PyObject *function, *weak;
};

/// The wrapped function.
PyObject* decorated_function(PyObject* self) { return reinterpret_cast<Decorated*>(self)->function; }

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

/// Only calls are intercepted: attributes, class and binding to an object are the function's.
nb::object decorated(vectorcallfunc call, nb::handle function) {
  auto* const made = PyObject_GC_New(Decorated, decorated_type());
  if (!made) throw nb::python_error();
  made->call = call;
  made->function = Py_NewRef(function.ptr());
  made->weak = nullptr;
  PyObject_GC_Track(made);
  return nb::steal(reinterpret_cast<PyObject*>(made));
}

HandleOf find_handle = nullptr;

// Calls with more captures or parameters are made by Python.
constexpr std::size_t most = 8;

struct Words {
  PyObject *core = word("_core"), *arrays = word("_arrays"), *params = word("_params"), *value = word("_value"),
           *out = word("out"), *lse = word("lse"), *max = word("max"), *q_offset = word("q_offset"),
           *lets = word("lets"), *automatic = word("auto");
  PyObject* parts[4] = {word("score"), word("mask"), word("prob"), word("sink")};
  PyObject* way[3] = {word("scale"), word("target"), word("exact")};
  /// Options that only Python handles, unless they are None or 0.
  PyObject* others[13] = {word("cu_seqlens"), word("cu_seqlens_q"), word("cu_seqlens_kv"), word("cover"),
                          word("workspace"),  word("progress"),     word("parallel_for"),  word("kv_len"),
                          word("q_offsets"),  word("page_table"),   word("o_before"),      word("lse_before"),
                          word("sharding")};
  PyObject* numbers[6] = {word("max_q_len"), word("max_kv_len"), word("stream"),
                          word("workers"),   word("kv_offset"),  word("fixed_split_size")};
  PyObject* zero = PyLong_FromLong(0);  // the one 0 of CPython
};
const Words& words() {
  static const Words all;
  return all;
}

/// The index of a keyword in `of`; N if it is not there.
template <std::size_t N>
std::size_t place_of(PyObject* name, PyObject* const (&of)[N]) {
  return static_cast<std::size_t>(std::ranges::find(of, name) - of);
}

/// The argument `lse` or `max`: not given, True, or an array to write.
struct Asked {
  bool wanted = false;
  nb::object array{};
  NumpyTensor tensor;

  /// The tensor to write; null if none is wanted. Sets `failed` if it cannot be written.
  const attune_tensor* of(const NumpyTensor& q, bool& failed) {
    if (!wanted) return nullptr;
    failed |= array.is_valid() ? !tensor.read(array) || !tensor.writeable()
                               : !tensor.make(q.tensor().shape, q.tensor().ndim - 1, nullptr, array);
    return &tensor.tensor();
  }
};

/// A call on NumPy arrays; derived classes find the attention. If any step fails, Python makes the call.
class Call {
 protected:
  bool read(nb::handle q, nb::handle k, nb::handle v) {
    if (!q_.read(q) || !k_.read(k) || !v_.read(v)) return false;
    if (q_.tensor().ndim != 4 || k_.tensor().ndim != 4 || v_.tensor().ndim != 4) return false;
    call_.q = &q_.tensor(), call_.k = &k_.tensor(), call_.v = &v_.tensor();
    return !is_long(call_);  // Python lets those listen to Ctrl-C
  }

  enum class Option { taken, refused, unknown };

  Option option(PyObject* name, nb::handle value) {
    const Words& w = words();
    if (name == w.out) {
      if (!value.is_none()) made_ = nb::borrow(value);
      return Option::taken;
    }
    if (name == w.lse || name == w.max) {
      Asked& asked = name == w.lse ? lse_ : max_;
      asked.wanted = value.ptr() != Py_False;
      if (asked.wanted && value.ptr() != Py_True) asked.array = nb::borrow(value);
      return Option::taken;
    }
    if (name == w.q_offset) {
      if (!PyLong_CheckExact(value.ptr())) return Option::refused;
      const long offset = PyLong_AsLong(value.ptr());
      if (offset < 0 || offset > INT32_MAX) {
        PyErr_Clear();
        return Option::refused;
      }
      call_.q_offset = static_cast<std::int32_t>(offset);
      return Option::taken;
    }
    if (place_of(name, w.others) < std::size(w.others)) return value.is_none() ? Option::taken : Option::refused;
    if (place_of(name, w.numbers) < std::size(w.numbers))
      return value.ptr() == w.zero ? Option::taken : Option::refused;
    return Option::unknown;
  }

  /// The results, once captures and parameters are bound; null without an exception if Python must make the call.
  PyObject* run(const Handle& handle) {
    const Entered call;
    if (!make_out()) return nullptr;
    call_.size = sizeof call_;
    call_.o = &out_.tensor();
    bool failed = false;
    call_.lse = lse_.of(q_, failed), call_.max = max_.of(q_, failed);
    if (failed) return nullptr;
    call_.captures = captures_, call_.n_captures = handle.captures.size();
    call_.params = numbers_, call_.n_params = handle.params.size();
    if (attune_error* const error = released([&] { return attune_run(handle.attention, &call_, nullptr); })) {
      attune_error_free(error);  // Python repeats the call and reports where the mistake is
      return nullptr;
    }
    return results();
  }

  const attune_tensor* captures_[most]{};
  double numbers_[most]{};

 private:
  bool make_out() {
    if (made_.is_valid()) return out_.read(made_) && out_.writeable();
    const std::int64_t* const q = q_.tensor().shape;
    const std::int64_t shape[4] = {q[0], q[1], q[2], v_.tensor().shape[3]};
    if (q_.tensor().dtype.code == ATTUNE_E4M3) return false;  // its results are bf16
    // A result with q's shape has q's order of dimensions.
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

  nb::object made_{};
  NumpyTensor q_, k_, v_, out_;
  Asked lse_{}, max_{};
  attune_call call_{};
};

/// A call of an Attention.
class KeptCall : Call {
 public:
  explicit KeptCall(nb::handle self) : self_(self) {}

  PyObject* made(PyObject* const* given, PyObject* const* values, PyObject* names) {
    core_ = attribute(self_, words().core);
    handle_ = core_.is_valid() ? find_handle(core_) : nullptr;
    if (!handle_ || handle_->captures.size() > most || handle_->params.size() > most) return nullptr;
    if (!read(given[0], given[1], given[2])) return nullptr;
    if ((names && !options(values, names)) || !bind()) return nullptr;
    return run(*handle_);
  }

 private:
  bool options(PyObject* const* values, PyObject* names) {
    const Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const name = PyTuple_GetItem(names, i);
      const Option said = option(name, values[i]);
      if (said == Option::refused || (said == Option::unknown && !rebind(name, values[i]))) return false;
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
    return read_number(value, handle_->params[i].kind, numbers_[i]);
  }

  /// The call's captures and parameters, and the Attention's where the call gives none.
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

  nb::handle self_;
  nb::object core_{}, kept_arrays_{};
  const Handle* handle_ = nullptr;
  NumpyTensor captured_[most];
  unsigned bound_params_ = 0;
};

/// A call of attention() that reuses an attention made for an equal call.
class LineCall : Call {
 public:
  PyObject* made(PyObject* const* given, PyObject* const* values, PyObject* names) {
    if (!read(given[0], given[1], given[2]) || (names && !options(values, names))) return nullptr;
    known_ = recall(said_, leaves_);
    if (!known_) return nullptr;
    for (std::size_t i = 0; i < known_->captures.size(); ++i)
      captures_[i] = &leaves_.all[known_->captures[i]].tensor.tensor();
    for (std::size_t i = 0; i < known_->params.size(); ++i) numbers_[i] = leaves_.all[known_->params[i]].number;
    return run(*known_->handle);
  }

 private:
  bool options(PyObject* const* values, PyObject* names) {
    const Words& w = words();
    const Py_ssize_t count = PyTuple_Size(names);
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* const name = PyTuple_GetItem(names, i);
      const nb::handle value = values[i];
      if (const std::size_t part = place_of(name, w.parts); part < said_.parts.size()) {
        said_.parts[part] = value;
      } else if (const std::size_t way = place_of(name, w.way); way < said_.way.size()) {
        said_.way[way] = value;
      } else if (name == w.lets) {
        if (!value.is_none()) return false;
      } else if (const Option taken = option(name, value); taken == Option::unknown) {
        if (said_.keywords == said_.names.size()) return false;
        said_.names[said_.keywords] = name, said_.things[said_.keywords++] = value;
      } else if (taken == Option::refused) {
        return false;
      }
    }
    return true;
  }

  Said said_{{Py_None, Py_None, Py_None, Py_None}, {Py_None, words().automatic, Py_None}};
  Leaves leaves_;
  std::shared_ptr<const Known> known_{};
};

PyObject* call_kept(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 4)
    if (PyObject* const made = KeptCall(args[0]).made(args + 1, args + count, names)) return made;
  return PyObject_Vectorcall(decorated_function(self), args, flags, names);
}

PyObject* call_line(PyObject* self, PyObject* const* args, std::size_t flags, PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count == 3)
    if (PyObject* const made = LineCall().made(args, args + count, names)) return made;
  return PyObject_Vectorcall(decorated_function(self), args, flags, names);
}

/// attention() calls this after it made an attention, with the call's arguments, the key of its Scan and, for each slot
/// of a capture or parameter, its index among the Scan's leaves.
void remember_line(const nb::tuple& what, const nb::tuple& names, const nb::tuple& things, const nb::tuple& key,
                   nb::object core, std::vector<std::size_t> captures, std::vector<std::size_t> params) {
  const Handle* const handle = find_handle(core);
  Said said;
  if (names.size() > said.names.size() || captures.size() > most || params.size() > most) return;
  for (std::size_t i = 0; i < said.parts.size(); ++i) said.parts[i] = what[i];
  for (std::size_t i = 0; i < said.way.size(); ++i) said.way[i] = what[said.parts.size() + i];
  for (std::size_t i = 0; i < names.size(); ++i) said.names[i] = names[i], said.things[i] = things[i];
  said.keywords = names.size();
  remember(said, key, std::move(core), handle, std::move(captures), std::move(params));
}

}  // namespace

void add_quick(nb::module_& m, HandleOf handle_of) {
  find_handle = handle_of;
  m.def("quick", [](nb::handle function) { return decorated(call_kept, function); });
  m.def("quick_line", [](nb::handle function) {
    find_types(function);
    return decorated(call_line, function);
  });
  m.def("remember", remember_line);
}

}  // namespace attune::python

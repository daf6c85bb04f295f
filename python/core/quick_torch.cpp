// python/core/quick_torch.cpp — the fast path of small calls on torch's CPU tensors, without Python's overhead
#include "python/core/quick_torch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "python/core/exchange.h"
#include "python/core/gil.h"

namespace attune::python {
namespace {

// Elements of q. A call with fewer runs on one thread. torch/_attend.py has the same number.
constexpr double small = 1 << 12;
// Scores. A call with more of them checks for signals, which Python sets up.
constexpr double slow = 1 << 22;
// Calls with more captures or integers are made by Python.
constexpr std::size_t most = 8;

/// All are kept until the process ends.
struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  PyObject *empty = nullptr, *empty_like = nullptr, *output = nullptr, *f32 = nullptr, *f64 = nullptr;
  PyObject* with_dtype = nullptr;  // ("dtype",)
  PyObject* rows = nullptr;        // the last tensor of a number for each row, for torch.empty_like; nobody else has it
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
};
Torch& torch() {
  static Torch all;
  return all;
}

/// True if the tensor has one of torch's own classes and no pending negation.
bool is_plain(nb::handle tensor) {
  const Torch& t = torch();
  PyTypeObject* const type = Py_TYPE(tensor.ptr());
  if (type != t.tensor && type != t.parameter) return false;
  PyObject* const given[] = {tensor.ptr()};
  const nb::object negated = nb::steal(PyObject_VectorcallMethod(t.is_neg, given, 1, nullptr));
  if (!negated.is_valid()) PyErr_Clear();
  return negated.ptr() == Py_False;
}

/// Why Python must make the call; `said` gives the reason to Python as a word.
enum class Why { none, special, elsewhere, large, shape, mistake };

nb::object said(Why why) {
  static PyObject* const words[] = {PyUnicode_InternFromString("none"),      PyUnicode_InternFromString("special"),
                                    PyUnicode_InternFromString("elsewhere"), PyUnicode_InternFromString("large"),
                                    PyUnicode_InternFromString("shape"),     PyUnicode_InternFromString("mistake")};
  return nb::borrow(words[static_cast<std::size_t>(why)]);
}

/// The memory of a torch tensor, which must outlive this object.
class Tensor {
 public:
  Why read(nb::handle tensor) {
    return !is_plain(tensor) ? Why::special : !read_memory(tensor) ? Why::elsewhere : Why::none;
  }

  bool read_memory(nb::handle tensor) {
    const Exchange* const functions = exchange_of(Py_TYPE(tensor.ptr()));
    if (functions && functions->tensor_from_object(tensor.ptr(), &tensor_) == 0)
      return tensor_.device.device_type == ATTUNE_CPU;
    PyErr_Clear();
    return false;
  }

  const attune_tensor* at() const { return &tensor_; }
  double extent(int i) const { return static_cast<double>(tensor_.shape[i]); }

  bool contiguous() const {
    std::int64_t step = 1;
    for (int i = tensor_.ndim; i-- > 0; step *= tensor_.shape[i])
      if (tensor_.shape[i] != 1 && tensor_.strides && tensor_.strides[i] != step) return false;
    return true;
  }

 private:
  attune_tensor tensor_;
};

/// Calls `function` and reads its result into `as`; null without an exception on failure.
template <class... Given>
nb::object made(Tensor& as, PyObject* function, PyObject* names, Given... given) {
  PyObject* const list[] = {given...};
  const std::size_t named = names ? 1 : 0;
  nb::object out = nb::steal(PyObject_Vectorcall(function, list, sizeof...(given) - named, names));
  if (!out.is_valid()) PyErr_Clear();
  if (out.is_valid() && !as.read_memory(out)) out.reset();
  return out;
}

nb::object made_like(Tensor& as, nb::handle tensor) { return made(as, torch().empty_like, nullptr, tensor.ptr()); }

/// A tensor of one number a row. torch.empty takes twice as long as torch.empty_like, so the last tensor is the model.
nb::object made_rows(Tensor& as, const Tensor& q) {
  Torch& t = torch();
  const std::uint8_t bits = q.at()->dtype.bits == 64 ? 64 : 32;
  Tensor last;
  if (!t.rows || !last.read_memory(t.rows) || last.at()->dtype.bits != bits ||
      !std::equal(q.at()->shape, q.at()->shape + 3, last.at()->shape)) {
    nb::object extents[3];
    for (int i = 0; i < 3; ++i) extents[i] = nb::steal(PyLong_FromLongLong(q.at()->shape[i]));
    nb::object rows = made(as, t.empty, t.with_dtype, extents[0].ptr(), extents[1].ptr(), extents[2].ptr(),
                           bits == 64 ? t.f64 : t.f32);
    if (!rows.is_valid()) return rows;
    const nb::object former = nb::steal(t.rows);
    t.rows = rows.release().ptr();
  }
  return made_like(as, t.rows);
}

/// The common part of forward and backward.
struct Call {
  const Handle& handle;
  attune_call call{};
  Tensor q, k, v, captured[most];
  const attune_tensor* captures[most];
  double numbers[most];

  explicit Call(const Handle& of) : handle(of) { call.size = sizeof call; }

  Why read(nb::handle q_given, nb::handle k_given, nb::handle v_given) {
    if (const Why why = q.read(q_given); why != Why::none) return why;
    if (const Why why = k.read(k_given); why != Why::none) return why;
    if (const Why why = v.read(v_given); why != Why::none) return why;
    if (q.at()->ndim != 4 || k.at()->ndim != 4 || v.at()->ndim != 4) return Why::shape;
    const double rows = q.extent(0) * q.extent(1) * q.extent(2);
    call.q = q.at(), call.k = k.at(), call.v = v.at();
    return rows * q.extent(3) <= small && rows * k.extent(2) <= slow ? Why::none : Why::large;
  }

  /// The captured tensors are in `list`, from `first` on.
  Why bind(const nb::tuple& list, std::size_t first, const nb::tuple& ints) {
    if (handle.captures.size() > most || ints.size() > most) return Why::large;
    if (list.size() != first + handle.captures.size() || ints.size() != handle.params.size()) return Why::mistake;
    for (std::size_t i = 0; i < handle.captures.size(); ++i) {
      if (const Why why = captured[i].read(list[first + i]); why != Why::none) return why;
      captures[i] = captured[i].at();
    }
    for (std::size_t i = 0; i < ints.size(); ++i) {
      const nb::handle number = ints[i];
      if (!PyLong_CheckExact(number.ptr())) return Why::special;
      numbers[i] = PyLong_AsDouble(number.ptr());
      if (PyErr_Occurred()) {
        PyErr_Clear();
        return Why::mistake;
      }
    }
    call.captures = captures, call.n_captures = handle.captures.size();
    call.params = numbers, call.n_params = handle.params.size();
    return Why::none;
  }

  /// False on an error: Python repeats the call and reports where the mistake is.
  bool run() {
    attune_error* error = nullptr;
    {
      const Released running;
      error = attune_run(handle.attention, &call, nullptr);
    }
    attune_error_free(error);
    return !error;
  }
};

}  // namespace

void find_torch(nb::handle output) {
  const nb::module_ module = nb::module_::import_("torch");
  const auto kept = [](nb::handle of, const char* name) { return nb::object(of.attr(name)).release().ptr(); };
  Torch& t = torch();
  t.tensor = reinterpret_cast<PyTypeObject*>(kept(module, "Tensor"));
  t.parameter = reinterpret_cast<PyTypeObject*>(kept(module.attr("nn"), "Parameter"));
  t.empty = kept(module, "empty"), t.empty_like = kept(module, "empty_like");
  t.f32 = kept(module, "float32"), t.f64 = kept(module, "float64");
  t.with_dtype = nb::make_tuple("dtype").release().ptr();
  t.output = nb::borrow(output).release().ptr();
}

bool plain(const nb::args& tensors) {
  for (const nb::handle tensor : tensors)
    if (!is_plain(tensor)) return false;
  return true;
}

nb::object attend(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& captures,
                  const nb::tuple& ints, bool with_lse, bool with_max) {
  Call c(handle);
  const auto [q, k, v] = qkv;
  if (const Why why = c.read(q, k, v); why != Why::none) return said(why);
  if (const Why why = c.bind(captures, 0, ints); why != Why::none) return said(why);
  Tensor of_out, of_lse, of_max;
  const bool as_q = c.q.contiguous() && c.q.extent(3) == c.v.extent(3) && c.q.at()->dtype.code != ATTUNE_E4M3;
  const nb::object out = as_q ? made_like(of_out, q) : made(of_out, torch().output, nullptr, q.ptr(), v.ptr());
  const nb::object lse = with_lse ? made_rows(of_lse, c.q) : nb::none();
  const nb::object largest = with_max ? made_rows(of_max, c.q) : nb::none();
  if (!out.is_valid() || !lse.is_valid() || !largest.is_valid()) return said(Why::mistake);
  c.call.o = of_out.at();
  if (with_lse) c.call.lse = of_lse.at();
  if (with_max) c.call.max = of_max.at();
  if (!c.run()) return said(Why::mistake);
  return nb::make_tuple(out, lse, largest);
}

nb::object gradients(const Handle& handle, nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved,
                     const nb::tuple& ints, const nb::tuple& wanted, std::size_t first) {
  constexpr std::size_t own = 3, before = 5;  // q, k, v; then also the output and the lse
  Call c(handle);
  if (saved.size() < before) return said(Why::mistake);
  if (const Why why = c.read(saved[0], saved[1], saved[2]); why != Why::none) return said(why);
  if (const Why why = c.bind(saved, before, ints); why != Why::none) return said(why);
  const std::size_t count = own + handle.captures.size();
  if (wanted.size() != first + count) return said(Why::mistake);
  Tensor out, lse, of_out, of_lse, of_grads[own + most];
  for (const auto& [tensor, given] :
       {std::pair(&out, nb::handle(saved[3])), std::pair(&lse, nb::handle(saved[4])), std::pair(&of_out, grad_o)})
    if (const Why why = tensor->read(given); why != Why::none) return said(why);
  if (!grad_lse.is_none()) {
    if (const Why why = of_lse.read(grad_lse); why != Why::none) return said(why);
    if (of_lse.at()->dtype.bits != lse.at()->dtype.bits) return said(Why::special);
  }
  nb::object grads = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(first + count)));
  const attune_tensor* written[own + most]{};
  for (std::size_t i = 0; i < first + count; ++i) {
    nb::object grad = nb::none();
    if (i >= first && wanted[i].is(Py_True)) {
      const std::size_t at = i - first;
      grad = made_like(of_grads[at], saved[at < own ? at : at + before - own]);
      if (!grad.is_valid()) return said(Why::mistake);
      written[at] = of_grads[at].at();
    }
    PyTuple_SetItem(grads.ptr(), static_cast<Py_ssize_t>(i), grad.release().ptr());
  }
  c.call.pass = ATTUNE_BACKWARD;
  c.call.o = out.at(), c.call.lse = lse.at(), c.call.grad_o = of_out.at();
  if (!grad_lse.is_none()) c.call.grad_lse = of_lse.at();
  c.call.dq = written[0], c.call.dk = written[1], c.call.dv = written[2];
  c.call.captured_grads = written + own, c.call.n_captured_grads = handle.captures.size();
  return c.run() ? grads : said(Why::mistake);
}

}  // namespace attune::python

// python/core/quick_torch.cpp — the fast path of dense calls on torch's tensors, without Python's overhead
#include "python/core/quick_torch.h"

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "python/core/gil.h"
#include "python/core/torch_tensors.h"

namespace attune::python {
namespace {

// Calls with more captures or integers are made by Python.
constexpr std::size_t most = 8;

/// The common part of forward and backward.
struct Call {
  const Handle& handle;
  attune_call call{};
  attune_with with{};
  TorchTensor q, k, v, captured[most];
  nb::object memory{};  ///< of the GPU
  const attune_tensor* captures[most];
  double numbers[most];

  explicit Call(const Handle& of) : handle(of) { call.size = sizeof call, with.size = sizeof with; }

  Why read(nb::handle q_given, nb::handle k_given, nb::handle v_given) {
    if (const Why why = q.read(q_given); why != Why::none) return why;
    if (const Why why = k.read(k_given); why != Why::none) return why;
    if (const Why why = v.read(v_given); why != Why::none) return why;
    if (q.at()->ndim != 4 || k.at()->ndim != 4 || v.at()->ndim != 4) return Why::shape;
    call.q = q.at(), call.k = k.at(), call.v = v.at();
    return Why::none;
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
    return is_slow(q, k) ? Why::large : Why::none;
  }

  /// `then`() runs after the kernels of a first call on a device are compiled. False on an error: Python repeats the
  /// call and reports where the mistake is.
  template <class Then>
  bool run(nb::handle q_given, const Then& then) {
    if (q.on_device()) {
      if (!set_device(with, memory, handle, call, q_given, then)) return false;
    } else {
      with.workers = workers_of(call, torch_threads);
    }
    attune_error* error = nullptr;
    {
      const Released running;
      error = attune_run(handle.attention, &call, &with);
    }
    attune_error_free(error);
    return !error;
  }
};

/// Which of the tensors of torch require gradients.
std::vector<bool> wanted_of(const nb::tuple& tensors) {
  std::vector<bool> out;
  for (const nb::handle tensor : tensors) out.push_back(tensor.attr("requires_grad").is(Py_True));
  return out;
}

/// The results of a call whose other tensors have been read.
nb::object results(Call& c, nb::handle q, nb::handle v, const nb::tuple& captures, AttendWith with) {
  TorchTensor of_out, of_lse, of_max;
  const nb::object out = made_output(of_out, c.q, c.v, q, v);
  const nb::object lse = with.with_lse ? made_rows(of_lse, c.q, q) : nb::none();
  const nb::object largest = with.with_max ? made_rows(of_max, c.q, q) : nb::none();
  if (!out.is_valid() || !lse.is_valid() || !largest.is_valid()) return said(Why::mistake);
  c.call.o = of_out.at();
  if (with.with_lse) c.call.lse = of_lse.at();
  if (with.with_max) c.call.max = of_max.at();
  const auto then = [&] {
    if (with.recorded) start_backward(c.handle.attention, c.call, wanted_of(captures));
  };
  if (!c.run(q, then)) return said(Why::mistake);
  return nb::make_tuple(out, lse, largest);
}

}  // namespace

nb::object attend(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& captures,
                  const nb::tuple& ints, AttendWith with) {
  Call c(handle);
  const auto [q, k, v] = qkv;
  if (const Why why = c.read(q, k, v); why != Why::none) return said(why);
  if (const Why why = c.bind(captures, 0, ints); why != Why::none) return said(why);
  return results(c, q, v, captures, with);
}

nb::object attend_cache(const Handle& handle, const std::array<nb::handle, 3>& qkv, const nb::tuple& cache,
                        const nb::tuple& captures, const nb::tuple& ints) {
  constexpr const attune_tensor* attune_call::*members[] = {&attune_call::kv_len, &attune_call::page_table,
                                                            &attune_call::q_offsets, &attune_call::o_before,
                                                            &attune_call::lse_before};
  Call c(handle);
  const auto [q, k, v] = qkv;
  TorchTensor read[std::size(members)];
  if (cache.size() != std::size(members)) return said(Why::mistake);
  if (const Why why = c.read(q, k, v); why != Why::none) return said(why);
  for (std::size_t i = 0; i < std::size(members); ++i) {
    if (cache[i].is_none()) continue;
    if (const Why why = read[i].read(cache[i]); why != Why::none) return said(why);
    c.call.*members[i] = read[i].at();
  }
  if (const Why why = c.bind(captures, 0, ints); why != Why::none) return said(why);
  return results(c, q, v, captures, {.with_lse = true, .with_max = false, .recorded = false});
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
  TorchTensor out, lse, of_out, of_lse, of_grads[own + most];
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
  return c.run(saved[0], [] {}) ? grads : said(Why::mistake);
}

}  // namespace attune::python

// python/core/torch_recorded.cpp — attentions whose gradients torch's own autograd records, without Python
#include "python/core/torch_recorded.h"

#include <array>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "python/core/torch_call.h"
#include "python/core/torch_tensors.h"

namespace attune::python {
namespace {

using Value = Shim::Value;

/// The memory of a tensor that comes to the operator as its attn_bias: the node saves it, so the entry lives as long.
struct Keeper {
  static constexpr std::uint64_t word = 0x31'65'6E'75'74'74'61'A7;
  struct Managed {  // DLPack's
    attune_tensor tensor;
    Keeper* of;
    void (*deleter)(Managed*);
  };

  std::uint64_t memory[2]{word, reinterpret_cast<std::uintptr_t>(&entry)};
  std::int64_t extent = 2;
  Entry entry;
  Managed managed{};
};

/// The entry of a keeper; throws for any other tensor.
Entry& entry_of(const Owned& keeper) {
  std::int64_t rank = 0, *sizes = nullptr;
  std::int32_t device = 0;
  void* data = nullptr;
  const Shim& s = shim();
  if (keeper.get() && s.get_dim(keeper.get(), &rank) == 0 && rank == 1 && s.get_sizes(keeper.get(), &sizes) == 0 &&
      sizes[0] == 2 && s.get_device_type(keeper.get(), &device) == 0 && device != s.cuda &&
      s.get_data_ptr(keeper.get(), &data) == 0 && data) {
    std::uint64_t memory[2];
    std::memcpy(memory, data, sizeof memory);
    if (memory[0] == Keeper::word) return *reinterpret_cast<Entry*>(memory[1]);
  }
  throw std::runtime_error("attune: the overrideable attention of torch is for attune.torch here");
}

/// An operator with an autograd node of torch's, and where its backward has its arguments. q, k, v and attn_bias come
/// first in the forward, and after grad_out in the backward.
struct Form {
  const char* name;
  std::array<int, 5> unread;  ///< results, tensors that nobody reads; the rest of them are none
  int out, lse, wanted;       ///< of the backward; `wanted`: a Bool for each gradient
  std::array<int, 4> unused;  ///< tensors of the backward
};
constexpr int none = -1;
/// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale)
constexpr Form overrideable{
    "_scaled_dot_product_fused_attention_overrideable", {2, 3, 6, 7, 8}, 6, 7, 5, {8, 9, 14, 15}};
/// (query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, scale). Torch has it for GPUs alone; unlike
/// the other one it has a function of Python in C++, which takes a third of the time that torch.ops takes.
constexpr Form efficient{
    "_scaled_dot_product_efficient_attention", {2, 3, none, none, none}, 5, 6, 10, {7, 8, none, none}};

template <const Form& form>
void forward(Value* stack, std::uint64_t, std::uint64_t) {
  const Owned given[] = {Owned(stack[0]), Owned(stack[1]), Owned(stack[2]), take_optional(stack[3])};
  Entry& entry = entry_of(given[3]);
  const View q(given[0]), k(given[1]), v(given[2]);
  Owned out = empty_like(q, v.tensor.shape[3]), lse = rows_of(q);
  const View of_out(out), of_lse(lse);
  attune_call call{};
  call.q = &q.tensor, call.k = &k.tensor, call.v = &v.tensor, call.o = &of_out.tensor, call.lse = &of_lse.tensor;
  run(entry, call, true);
  for (const int unread : form.unread)
    if (unread != none) stack[unread] = lse.again();
  if (&form == &overrideable) stack[4] = stack[5] = 0;  // the longest lengths
  stack[0] = out.value(), stack[1] = lse.value();
}

/// Gradients of gradients are refused by attune::once, whose node Python has.
void refuse_next(std::array<Owned, 3>& grads, const Owned* read, std::size_t count) {
  const Shim& s = shim();
  Shim::List made = nullptr, also = nullptr;
  check(s.new_list(grads.size(), &made) | s.new_list(count, &also), "new_list");
  std::vector<std::size_t> at;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!grads[i].get()) continue;
    at.push_back(i);
    check(s.list_push(made, grads[i].value()), "list_push_back");
  }
  for (std::size_t i = 0; i < count; ++i) check(s.list_push(also, read[i].again()), "list_push_back");
  Value stack[] = {reinterpret_cast<Value>(made), reinterpret_cast<Value>(also)};
  check(s.call("attune::once", "", stack, shim_version), "call_dispatcher");
  const List marked(stack[0]);
  for (std::size_t i = 0; i < at.size(); ++i) grads[at[i]] = Owned(marked[i]);
  free_arguments("l", stack);
}

/// Four gradients, undefined where they are not wanted.
template <const Form& form>
void backward(Value* stack, std::uint64_t, std::uint64_t) {
  const Shim& s = shim();
  const Owned given[] = {Owned(stack[0]),        Owned(stack[1]),        Owned(stack[2]), Owned(stack[3]),
                         Owned(stack[form.out]), Owned(stack[form.lse]), Owned(stack[4])};
  for (const int unused : form.unused)
    if (unused != none) release(stack[unused]);
  bool is_defined = false;
  check(s.is_defined(given[0].get(), &is_defined), "is_defined");
  if (!is_defined) {  // nothing depends on the output
    free_arguments("l", stack + form.wanted);
    for (std::size_t i = 0; i < 4; ++i) stack[i] = undefined_tensor().value();
    return;
  }
  std::array<Owned, 3> grads;
  const View grad_o(given[0]), q(given[1]), k(given[2]), v(given[3]), o(given[4]), lse(given[5]);
  const View* const inputs[] = {&q, &k, &v};
  std::array<std::optional<View>, 3> of_grads;
  const List wanted(stack[form.wanted]);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (!(wanted[i] & 1)) continue;
    grads[i] = empty_like(*inputs[i], inputs[i]->tensor.shape[3]);
    of_grads[i].emplace(grads[i]);
  }
  free_arguments("l", stack + form.wanted);
  const auto at = [&](std::size_t i) { return of_grads[i] ? &of_grads[i]->tensor : nullptr; };
  attune_call call{};
  call.pass = ATTUNE_BACKWARD;
  call.q = &q.tensor, call.k = &k.tensor, call.v = &v.tensor, call.o = &o.tensor, call.lse = &lse.tensor;
  call.grad_o = &grad_o.tensor, call.dq = at(0), call.dk = at(1), call.dv = at(2);
  run(entry_of(given[6]), call, false);
  if (s.grad_mode()) refuse_next(grads, given, 6);
  for (std::size_t i = 0; i < 4; ++i)
    stack[i] = i < 3 && grads[i].get() ? grads[i].value() : undefined_tensor().value();
}

/// Torch's functions for Python; kept until the process ends. `efficient` is null where torch has no such function.
struct Torch {
  PyObject *op = nullptr, *efficient = nullptr, *hooks = nullptr, *from_dlpack = nullptr;
};
Torch& torch() {
  static Torch all;
  return all;
}

/// Fills an operator and its backward for one kind of device. The backward also stands above torch's own node, which
/// would refuse gradients of gradients in other words.
template <const Form& form>
bool fill(const char* device) {
  const std::string of_backward = std::string(form.name) + "_backward", above = std::string("Autograd") + device;
  for (const char* const key : {device, above.c_str()}) {
    Shim::Library library = nullptr;  // for as long as the process lives
    if (shim().library("aten", key, __FILE__, __LINE__, &library) != 0) return false;
    if (key == device && shim().implement(library, form.name, forward<form>, shim_version) != 0) return false;
    if (shim().implement(library, of_backward.c_str(), backward<form>, shim_version) != 0) return false;
  }
  return true;
}

}  // namespace

bool record_torch(nb::handle op, nb::handle function, nb::handle hooks, nb::handle from_dlpack, nb::handle address_of) {
  if (!find_shim(address_of)) return false;
  if (!fill<overrideable>("CPU") || !fill<overrideable>("CUDA")) return false;
  const bool filled = !function.is_none() && fill<efficient>("CPU");
  torch() = {nb::borrow(op).release().ptr(), filled ? nb::borrow(function).release().ptr() : nullptr,
             nb::borrow(hooks).release().ptr(), nb::borrow(from_dlpack).release().ptr()};
  return true;
}

RecordedCall::RecordedCall(Handle& handle, const nb::tuple& ints) {
  auto keeper = std::make_unique<Keeper>();
  keeper->entry.attention = handle.shared();
  for (const nb::handle number : ints) keeper->entry.params.push_back(nb::cast<double>(number));
  keeper->managed.tensor.data = keeper->memory;
  keeper->managed.tensor.device = {ATTUNE_CPU, 0};
  keeper->managed.tensor.ndim = 1;
  keeper->managed.tensor.dtype = {ATTUNE_INT, 64, 1};
  keeper->managed.tensor.shape = &keeper->extent;
  keeper->managed.of = keeper.get();
  keeper->managed.deleter = [](Keeper::Managed* done) { delete done->of; };
  const nb::object capsule = nb::steal(PyCapsule_New(&keeper.release()->managed, "dltensor", [](PyObject* given) {
    if (std::strcmp(PyCapsule_GetName(given), "dltensor") != 0) return;  // torch has taken it
    delete static_cast<Keeper::Managed*>(PyCapsule_GetPointer(given, "dltensor"))->of;
  }));
  keeper_ = nb::handle(torch().from_dlpack)(capsule);
}

nb::object RecordedCall::attend(nb::handle q, nb::handle k, nb::handle v) const {
  TorchTensor given[3];
  const nb::handle objects[] = {q, k, v};
  for (std::size_t i = 0; i < 3; ++i) {
    if (const Why why = given[i].read(objects[i]); why != Why::none) return said(why);
    if (given[i].at()->ndim != 4) return said(Why::shape);
    if (!is_dense(*given[i].at())) return said(Why::shape);
  }
  if (is_slow(given[0], given[1])) return said(Why::large);
  PyObject* const ignore_tracing[] = {Py_True};
  const nb::object hooks = nb::steal(PyObject_Vectorcall(torch().hooks, ignore_tracing, 1, nullptr));
  if (!hooks.is_valid()) PyErr_Clear();
  if (!hooks.is_none()) return said(Why::mistake);
  PyObject* const list[] = {q.ptr(), k.ptr(), v.ptr(), keeper_.ptr(), Py_True};
  const bool quicker = torch().efficient && !given[0].on_device();
  PyObject* const op = quicker ? torch().efficient : torch().op;
  const nb::object made = nb::steal(
      PyObject_Vectorcall(op, list, quicker ? std::size(list) : std::size(list) - 1, nullptr));
  if (!made.is_valid()) {
    PyErr_Clear();
    return said(Why::mistake);
  }
  return nb::borrow(PyTuple_GetItem(made.ptr(), 0));
}

}  // namespace attune::python

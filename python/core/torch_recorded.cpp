// python/core/torch_recorded.cpp — calls whose gradients torch's own autograd records, without Python
#include "python/core/torch_recorded.h"

#include <cstring>
#include <iterator>
#include <memory>
#include <stdexcept>

namespace attune::python {
namespace {

/// The memory of a tensor that comes to an operator as its attn_bias: the node saves it, so the entry lives as long.
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

/// Torch's functions for Python; kept until the process ends. `efficient` is null where torch has no such function.
struct Recorder {
  PyObject *op = nullptr, *efficient = nullptr, *hooks = nullptr, *from_dlpack = nullptr;
} recorder;

nb::object keeper_of(const Entry& entry) {
  auto keeper = std::make_unique<Keeper>();
  keeper->entry = entry;
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
  return nb::handle(recorder.from_dlpack)(capsule);
}

}  // namespace

const Entry& entry_in(Shim::Tensor keeper) {
  std::int64_t rank = 0, *sizes = nullptr;
  std::int32_t device = 0;
  void* data = nullptr;
  const Shim& s = shim();
  if (keeper && s.get_dim(keeper, &rank) == 0 && rank == 1 && s.get_sizes(keeper, &sizes) == 0 && sizes[0] == 2 &&
      s.get_device_type(keeper, &device) == 0 && device != s.cuda && s.get_data_ptr(keeper, &data) == 0 && data) {
    std::uint64_t memory[2];
    std::memcpy(memory, data, sizeof memory);
    if (memory[0] == Keeper::word) return *reinterpret_cast<const Entry*>(memory[1]);
  }
  throw std::runtime_error("attune: the overrideable attention of torch is for attune.torch here");
}

void record_by(nb::object op, nb::object efficient, nb::object hooks, nb::object from_dlpack) {
  recorder = {op.release().ptr(), efficient.is_none() ? nullptr : efficient.release().ptr(), hooks.release().ptr(),
              from_dlpack.release().ptr()};
}

nb::object record(const std::array<nb::handle, 3>& qkv, nb::object& keeper, const Entry& entry, bool on_gpu) {
  if (!recorder.op) return {};
  PyObject* const ignore_tracing[] = {Py_True};
  const nb::object hooks = nb::steal(PyObject_Vectorcall(recorder.hooks, ignore_tracing, 1, nullptr));
  if (!hooks.is_valid()) PyErr_Clear();
  if (!hooks.is_none()) return {};
  if (!keeper.is_valid()) keeper = keeper_of(entry);
  PyObject* const list[] = {qkv[0].ptr(), qkv[1].ptr(), qkv[2].ptr(), keeper.ptr(), Py_True};
  const bool quicker = recorder.efficient && !on_gpu;
  const nb::object made = nb::steal(PyObject_Vectorcall(quicker ? recorder.efficient : recorder.op, list,
                                                        quicker ? std::size(list) : std::size(list) - 1, nullptr));
  if (!made.is_valid()) {
    PyErr_Clear();
    return {};
  }
  return nb::borrow(PyTuple_GetItem(made.ptr(), 0));
}

}  // namespace attune::python

// python/core/torch/call.cpp — calls with torch's tensors, and torch's stream, memory and threads
#include "python/core/torch/call.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <iterator>
#include <list>
#include <stdexcept>
#include <string>
#include <utility>

#include "python/core/borrowed.h"
#include "python/core/call.h"
#include "python/core/gil.h"
#include "python/core/named.h"

namespace attune::python {
namespace {

/// The memory of the tensor that an operator gets as attn_bias. Autograd's node saves this tensor, which keeps the
/// entry alive.
struct Keeper {
  static constexpr std::uint64_t word = 0x31'65'6E'75'74'74'61'A7;

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
  keeper->managed.context = keeper.get();
  keeper->managed.deleter = [](Managed* done) { delete static_cast<Keeper*>(done->context); };
  return nb::handle(recorder.from_dlpack)(capsule_of(&keeper.release()->managed));
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

namespace {

/// All are kept until the process ends.
struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  PyObject *threads = nullptr, *to_python = nullptr, *shown = nullptr;
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
};
Torch& torch() {
  static Torch& all = *new Torch;
  return all;
}

bool is_plain(nb::handle tensor) {
  const Torch& t = torch();
  PyTypeObject* const type = Py_TYPE(tensor.ptr());
  if (type != t.tensor && type != t.parameter) return false;
  PyObject* const given[] = {tensor.ptr()};
  const nb::object negated = nb::steal(PyObject_VectorcallMethod(t.is_neg, given, 1, nullptr));
  if (!negated.is_valid()) PyErr_Clear();
  return negated.ptr() == Py_False;
}

nb::object called(PyObject* function, nb::handle given) {
  nb::object out = nb::steal(PyObject_CallOneArg(function, given.ptr()));
  if (!out.is_valid()) throw nb::python_error();
  return out;
}

/// A new tensor as Python's. `made` keeps its memory.
nb::object wrapped(const Made& made) {
  Shim::Tensor const tensor = made.owner.get();
  if (!tensor) return nb::none();
  if (!shim().to_python) return called(torch().to_python, nb::steal(PyCapsule_New(tensor, nullptr, nullptr)));
  void* object = nullptr;
  check(shim().to_python(tensor, nullptr, &object), "tensor_to_pyobject");
  return nb::steal(static_cast<PyObject*>(object));
}

nb::object word(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

bool is_far(const attune_tensor& q) { return is_on_gpu(q) && q.dtype.code == ATTUNE_FLOAT && q.dtype.bits == 64; }

std::int32_t torch_threads() {
  std::uint32_t threads = 1;
  if (shim().threads) {
    check(shim().threads(&threads), "get_num_threads");
  } else if (const Acquired gil; gil) {
    threads = nb::cast<std::uint32_t>(nb::handle(torch().threads)());
  }
  return static_cast<std::int32_t>(threads);
}

/// The threads of a call on the host. Asking torch takes time, so small calls do not.
std::int32_t workers_of(const attune_call& call) {
  if (call.q->ndim == 4 && call.k->ndim == 4 && call.v->ndim == 4) {
    const std::int32_t worthwhile = attune_worthwhile_workers(&call);
    return worthwhile == 1 ? 1 : std::min(worthwhile, torch_threads());
  }
  return torch_threads();
}

}  // namespace

bool find_torch(const nb::dict& functions) {
  const auto kept = [&](const char* name) { return nb::object(functions[name]).release().ptr(); };
  Torch& t = torch();
  t.tensor = reinterpret_cast<PyTypeObject*>(kept("tensor")),
  t.parameter = reinterpret_cast<PyTypeObject*>(kept("parameter"));
  t.threads = kept("threads"), t.to_python = kept("to_python"), t.shown = kept("shown");
  return find_shim(functions["address_of"]);
}

std::int64_t split_size(std::int64_t splits, std::int64_t rows) {
  constexpr std::int64_t few_rows = 16;    // calls with more do not split keys on a GPU
  constexpr std::int64_t whole = 1 << 24;  // keys that no entry exceeds
  return splits == 1 && rows <= few_rows ? whole : 0;
}

bool plain(const nb::args& tensors) { return std::ranges::all_of(tensors, is_plain); }

void Results::make(attune_call& call, bool with_lse, bool with_max) {
  out = new_output(*call.q, *call.v);
  call.o = &out.at;
  if (with_lse) lse = new_rows(*call.q), call.lse = &lse.at;
  if (with_max) largest = new_rows(*call.q), call.max = &largest.at;
}

attune_error* run(SharedAttention& attention, attune_call& call, attune_with& with,
                  const std::function<void()>& compiled) {
  call.size = sizeof call, with.size = sizeof with;
  Made memory;
  if (is_on_gpu(*call.q)) {
    if (!shim().cuda_stream) throw std::runtime_error("attune: this torch has no CUDA");
    check(shim().cuda_stream(call.q->device.device_id, &with.stream), "get_current_cuda_stream");
    if (!with.sharding) {  // a call over ranks allocates its own memory
      std::size_t bytes = 0;
      if (attune_error* const error = find_workspace(attention, call, with, bytes, compiled)) return error;
      if (bytes > 0) {
        memory = new_tensor(call.q->device, shim().u8, {1, {static_cast<std::int64_t>(bytes)}, {1}});
        with.workspace = memory.at.data, with.workspace_bytes = bytes;
      }
    }
  } else {
    with.workers = workers_of(call);
  }
  return attune_run(attention.attention, &call, &with);
}

void start_backward(const attune_attention* attention, const attune_call& forward, const std::vector<bool>& wanted) {
  attune_call call = forward;
  call.pass = ATTUNE_BACKWARD;
  call.max = nullptr;
  call.grad_o = call.o;
  // Outputs that overlap other tensors are refused: each gets an address, which nothing reads, far from all memory.
  constexpr std::uintptr_t apart = std::uintptr_t{1} << 48;
  std::deque<attune_tensor> made;
  const auto like = [&](const attune_tensor* tensor) {
    made.push_back(*tensor);
    made.back().data = reinterpret_cast<void*>((made.size() + 1) * apart);
    made.back().byte_offset = 0;
    return &made.back();
  };
  call.dq = like(call.q), call.dk = like(call.k), call.dv = like(call.v);
  std::vector<const attune_tensor*> grads(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) grads[i] = wanted[i] ? like(call.captures[i]) : nullptr;
  call.captured_grads = grads.data(), call.n_captured_grads = grads.size();
  attune_error_free(attune_prepare_async(attention, &call));
}

/// A call and its tensors, which are Python's as long as this lives.
class TorchCall::EagerCall {
 public:
  attune_call call{};
  With with;

  explicit EagerCall(const TorchCall& of) : of_(of) {
    captures_.reserve(of.handle_.captures.size());
    call.params = of.entry_.ints.data(), call.n_params = of.entry_.ints.size();
  }

  const attune_tensor* read(nb::handle tensor, const char* name) { return read(tensor, name, is_plain(tensor)); }
  const attune_tensor* read(nb::handle tensor, const char* name, bool is_plain) {
    attune_tensor& out = count_ < std::size(all_) ? all_[count_++] : rest_.emplace_back();
    const Exchange* const functions = is_plain ? exchange_of(Py_TYPE(tensor.ptr())) : nullptr;
    if (functions && functions->tensor_from_object(tensor.ptr(), &out) == 0) {
      if (out.device.device_type == ATTUNE_CUDA_HOST) out.device = {ATTUNE_CPU, 0};
      return &out;
    }
    PyErr_Clear();
    shown_.push_back(called(torch().shown, tensor));
    void* stream = nullptr;
    if (call.q && is_on_gpu(*call.q)) check(shim().cuda_stream(call.q->device.device_id, &stream), "stream");
    borrowed_.emplace_back().take(shown_.back(), name, false, stream);
    return borrowed_.back().tensor();
  }

  /// They are in `list`, from `first` on.
  void read_captures(const nb::tuple& list, std::size_t first) {
    for (std::size_t i = first; i < list.size(); ++i)
      captures_.push_back(read(list[i], of_.handle_.captures[i - first].name.c_str(), first == 0 || is_plain(list[i])));
    call.captures = captures_.data(), call.n_captures = captures_.size();
  }

  /// Further tensors and options.
  void take(nb::handle more) {
    static const Names<tensors> names(rows);
    if (more.is_none()) return;
    each_named(more, [&](nb::handle name, nb::handle value) {
      if (const std::size_t tensor = names.find(name); tensor < tensors)
        call.*rows[tensor].member = read(value, rows[tensor].name);
      else
        set_option(call, with, name, value);
    });
  }

  void run(const std::function<void()>& compiled) {
    if (is_long(call)) with.listen();
    with.finish(released([&] { return python::run(*of_.entry_.attention, call, with.with, compiled); }));
  }

 private:
  const TorchCall& of_;
  attune_tensor all_[tensors + 8];  // not initialized: a call has few of these
  std::size_t count_ = 0;
  std::list<attune_tensor> rest_;
  std::vector<const attune_tensor*> captures_;
  std::list<Borrowed> borrowed_;  ///< of tensors that do not show their memory by DLPack's functions
  std::vector<nb::object> shown_;
};

TorchCall::TorchCall(nb::object of, Handle& handle, const nb::tuple& ints)
    : kept_(std::move(of)), handle_(handle), entry_{handle.shared} {
  for (const nb::handle number : ints) entry_.ints.push_back(nb::cast<double>(number));
}

nb::object TorchCall::attend(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& captures, bool with_lse,
                             bool with_max, bool recorded, nb::handle more) const {
  if (!is_plain(q) || !is_plain(k) || !is_plain(v) || !std::ranges::all_of(captures, is_plain)) return word("special");
  EagerCall given(*this);
  attune_call& call = given.call;
  call.q = given.read(q, "q", true), call.k = given.read(k, "k", true), call.v = given.read(v, "v", true);
  if (is_far(*call.q)) return word("far");
  bool is_usual = !is_long(call);
  for (const attune_tensor* const one : {call.q, call.k, call.v})
    is_usual = is_usual && one->ndim == 4 && same(one->dtype, call.q->dtype);
  if (recorded && !with_lse && !with_max && more.is_none() && captures.size() == 0 && is_usual)
    if (nb::object made = record({q, k, v}, keeper_, entry_, is_on_gpu(*call.q)); made.is_valid()) return made;
  given.read_captures(captures, 0);
  given.take(more);
  Results made;
  made.make(call, with_lse || recorded, with_max);
  std::function<void()> compiled;
  if (recorded && is_on_gpu(*call.q))
    compiled = [&] {
      std::vector<bool> wanted;
      {
        const Acquired gil;
        for (const nb::handle tensor : captures) wanted.push_back(tensor.attr("requires_grad").is(Py_True));
      }
      start_backward(handle_.attention, call, wanted);
    };
  given.run(compiled);
  return nb::make_tuple(wrapped(made.out), wrapped(made.lse), wrapped(made.largest));
}

nb::object TorchCall::gradients(nb::handle grad_o, nb::handle grad_lse, const nb::tuple& saved, const nb::tuple& wanted,
                                std::size_t first, nb::handle more) const {
  constexpr std::size_t own = 3, before = 5;  // q, k, v; then also the output and the lse
  EagerCall given(*this);
  attune_call& call = given.call;
  call.pass = ATTUNE_BACKWARD;
  call.q = given.read(saved[0], "q");
  if (is_far(*call.q)) return word("far");
  call.k = given.read(saved[1], "k"), call.v = given.read(saved[2], "v"), call.o = given.read(saved[3], "out");
  call.lse = given.read(saved[4], "lse"), call.grad_o = given.read(grad_o, "grad_o");
  nb::object grad = nb::borrow(grad_lse);
  if (!grad.is_none()) {
    if (!grad.attr("dtype").is(saved[4].attr("dtype"))) grad = grad.attr("to")(saved[4].attr("dtype"));
    call.grad_lse = given.read(grad, "grad_lse");
  }
  given.read_captures(saved, before);
  given.take(more);
  const std::size_t count = own + call.n_captures;
  std::vector<Made> made(count);
  std::vector<const attune_tensor*> written(count);
  const attune_tensor* const inputs[] = {call.q, call.k, call.v};
  for (std::size_t i = 0; i < count; ++i) {
    if (!wanted[first + i].is(Py_True)) continue;
    made[i] = empty_like(i < own ? *inputs[i] : *call.captures[i - own]);
    written[i] = &made[i].at;
  }
  call.dq = written[0], call.dk = written[1], call.dv = written[2];
  call.captured_grads = written.data() + own, call.n_captured_grads = call.n_captures;
  given.run(nullptr);
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(first + count)));
  for (std::size_t i = 0; i < first + count; ++i)
    PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(i),
                    i < first ? nb::none().release().ptr() : wrapped(made[i - first]).release().ptr());
  return out;
}

}  // namespace attune::python

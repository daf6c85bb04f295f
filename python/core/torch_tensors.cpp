// python/core/torch_tensors.cpp — torch's tensors: their memory, and new ones for results and workspaces
#include "python/core/torch_tensors.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "python/core/exchange.h"
#include "python/core/gil.h"

namespace attune::python {
namespace {

/// A tensor of a few bytes with the shape of many, for torch.empty_like: torch.empty takes twice as long.
struct Model {
  std::vector<std::int64_t> key;  // what it is for
  nb::object tensor;
};

/// All are kept until the process ends.
struct Torch {
  PyTypeObject *tensor = nullptr, *parameter = nullptr;
  PyObject *empty_like = nullptr, *threads = nullptr, *output = nullptr, *rows = nullptr, *bytes = nullptr;
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  std::array<Model, 8> models{};  // of rows
  std::size_t oldest = 0;
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

template <class... Given>
nb::object called(PyObject* function, Given... given) {
  PyObject* const list[] = {given...};
  nb::object out = nb::steal(PyObject_Vectorcall(function, list, sizeof...(given), nullptr));
  if (!out.is_valid()) PyErr_Clear();
  return out;
}

template <class... Given>
nb::object made(TorchTensor& as, PyObject* function, Given... given) {
  nb::object out = called(function, given...);
  if (out.is_valid() && as.read_memory(out) != Why::none) out.reset();
  return out;
}

/// What a tensor adds to the key of a call's workspace: kernels are chosen by shapes, strides, types and alignment.
void add(std::vector<std::int64_t>& key, const attune_tensor* of) {
  constexpr std::uintptr_t widest_access = 16;
  if (!of) return key.push_back(-1);
  const auto address = reinterpret_cast<std::uintptr_t>(of->data) + of->byte_offset;
  key.push_back(of->ndim | of->dtype.code << 8 | of->dtype.bits << 16 |
                static_cast<std::int64_t>(address % widest_access) << 32);
  key.insert(key.end(), of->shape, of->shape + of->ndim);
  if (of->strides) key.insert(key.end(), of->strides, of->strides + of->ndim);
}

}  // namespace

void find_torch(nb::handle output, nb::handle rows, nb::handle bytes) {
  const nb::module_ module = nb::module_::import_("torch");
  const auto kept = [](nb::handle of, const char* name) { return nb::object(of.attr(name)).release().ptr(); };
  Torch& t = torch();
  t.tensor = reinterpret_cast<PyTypeObject*>(kept(module, "Tensor"));
  t.parameter = reinterpret_cast<PyTypeObject*>(kept(module.attr("nn"), "Parameter"));
  t.empty_like = kept(module, "empty_like"), t.threads = kept(module, "get_num_threads");
  t.output = nb::borrow(output).release().ptr();
  t.rows = nb::borrow(rows).release().ptr();
  t.bytes = nb::borrow(bytes).release().ptr();
}

bool plain(const nb::args& tensors) { return std::ranges::all_of(tensors, is_plain); }

nb::object said(Why why) {
  static PyObject* const words[] = {PyUnicode_InternFromString("none"),      PyUnicode_InternFromString("special"),
                                    PyUnicode_InternFromString("elsewhere"), PyUnicode_InternFromString("large"),
                                    PyUnicode_InternFromString("shape"),     PyUnicode_InternFromString("mistake")};
  return nb::borrow(words[static_cast<std::size_t>(why)]);
}

Why TorchTensor::read(nb::handle tensor) { return is_plain(tensor) ? read_memory(tensor) : Why::special; }

Why TorchTensor::read_memory(nb::handle tensor) {
  const Exchange* const functions = exchange_of(Py_TYPE(tensor.ptr()));
  if (!functions || functions->tensor_from_object(tensor.ptr(), &tensor_) != 0) {
    PyErr_Clear();
    return Why::elsewhere;
  }
  const bool f64 = tensor_.dtype.code == ATTUNE_FLOAT && tensor_.dtype.bits == 64;
  const bool known = !on_device() || (tensor_.device.device_type == ATTUNE_CUDA && !f64);
  return known ? Why::none : Why::elsewhere;
}

bool is_dense(const attune_tensor& t) {
  if (!t.strides) return true;
  if (t.ndim > 4) return false;
  std::array<std::pair<std::int64_t, std::int64_t>, 4> order{};  // stride and extent
  const auto last = static_cast<std::size_t>(t.ndim);
  for (std::size_t i = 0; i < last; ++i) order[i] = {t.strides[i], t.shape[i]};
  if (last > 0 && order[last - 1].first != 1) return false;
  std::sort(order.begin(), order.begin() + t.ndim);
  std::int64_t step = 1;
  for (std::size_t i = 0; i < last; ++i) {
    const auto [stride, extent] = order[i];
    if (extent == 1) continue;
    if (stride != step) return false;
    step *= extent;
  }
  return true;
}

nb::object made_like(TorchTensor& as, nb::handle tensor) { return made(as, torch().empty_like, tensor.ptr()); }

nb::object made_output(TorchTensor& as, const TorchTensor& q, const TorchTensor& v, nb::handle q_given,
                       nb::handle v_given) {
  const bool as_q = q.extent(3) == v.extent(3) && q.at()->dtype.code != ATTUNE_E4M3 && is_dense(*q.at());
  return as_q ? made_like(as, q_given) : made(as, torch().output, q_given.ptr(), v_given.ptr());
}

nb::object made_rows(TorchTensor& as, const TorchTensor& q, nb::handle q_given) {
  Torch& t = torch();
  const attune_tensor& of = *q.at();
  const std::array<std::int64_t, 6> key{of.device.device_type, of.device.device_id, of.dtype.bits == 64,
                                        of.shape[0],           of.shape[1],         of.shape[2]};
  for (const Model& known : t.models)
    if (std::ranges::equal(known.key, key)) return made_like(as, nb::object(known.tensor));
  nb::object model = called(t.rows, q_given.ptr());
  if (!model.is_valid()) return model;
  t.models[t.oldest] = {{key.begin(), key.end()}, model};
  t.oldest = (t.oldest + 1) % t.models.size();
  return made_like(as, model);
}

std::vector<std::int64_t> key_of(const attune_call& call) {
  std::vector<std::int64_t> key;
  key.reserve(128);
  key.push_back(call.pass);
  key.push_back(call.q->device.device_id);
  for (const Row& row : rows) add(key, call.*row.member);
  for (std::size_t i = 0; i < call.n_captures; ++i) add(key, call.captures[i]);
  for (std::size_t i = 0; i < call.n_captured_grads; ++i) add(key, call.captured_grads[i]);
  return key;
}

namespace {

/// The bytes of a call's working memory, and their model; null on failure.
const Workspace* workspace_of(const Handle& handle, const attune_call& call, const attune_with& with,
                              nb::handle q_given, const std::function<void()>& then) {
  std::vector<std::int64_t> key = key_of(call);
  Workspaces& known = handle.workspaces;
  if (const auto found = std::ranges::find(known.all, key, &Workspace::key); found != known.all.end()) return &*found;
  std::size_t bytes = 0;
  attune_error* error = nullptr;
  {
    const Released compiling;
    error = attune_prepare(handle.attention, &call, &with, &bytes, nullptr);
  }
  attune_error_free(error);
  if (error) return nullptr;
  then();
  nb::object model;
  if (bytes > 0) {
    const nb::object count = nb::steal(PyLong_FromSize_t(bytes));
    model = called(torch().bytes, count.ptr(), q_given.ptr());
    if (!model.is_valid()) return nullptr;
  }
  if (known.all.size() < Workspaces::most) known.all.emplace_back();
  Workspace& made = known.all[known.oldest];
  made = {std::move(key), bytes, std::move(model)};
  known.oldest = (known.oldest + 1) % Workspaces::most;
  return &made;
}

}  // namespace

bool set_device(attune_with& with, nb::object& memory, const Handle& handle, const attune_call& call,
                nb::handle q_given, const std::function<void()>& then) {
  const Exchange* const functions = exchange_of(Py_TYPE(q_given.ptr()));
  if (functions->current_stream(ATTUNE_CUDA, call.q->device.device_id, &with.stream) != 0) {
    PyErr_Clear();
    return false;
  }
  const Workspace* const found = workspace_of(handle, call, with, q_given, then);
  if (!found) return false;
  if (found->bytes == 0) return true;
  TorchTensor of_memory;
  with.workspace_bytes = found->bytes;
  memory = made_like(of_memory, nb::object(found->model));  // meanwhile other threads may replace it
  if (!memory.is_valid()) return false;
  with.workspace = static_cast<char*>(of_memory.at()->data) + of_memory.at()->byte_offset;
  return true;
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

bool is_slow(const TorchTensor& q, const TorchTensor& k) {
  constexpr double scores = 1 << 22;
  return !q.on_device() && q.extent(0) * q.extent(1) * q.extent(2) * k.extent(2) > scores;
}

int torch_threads() {
  const nb::object count = nb::steal(PyObject_CallNoArgs(torch().threads));
  const long threads = count.is_valid() ? PyLong_AsLong(count.ptr()) : 1;
  PyErr_Clear();
  return static_cast<int>(std::max(threads, 1L));
}

}  // namespace attune::python

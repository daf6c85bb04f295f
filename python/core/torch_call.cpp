// python/core/torch_call.cpp — torch's tensors as C has them, new ones, and a call with torch's stream, memory and
// threads
#include "python/core/torch_call.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "python/core/torch_tensors.h"

namespace attune::python {
namespace {

std::atomic<bool> engine_chosen{false};

}  // namespace

void check(std::int32_t status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("attune: torch's ") + what + " failed");
}

Shim::Value Owned::again() const {
  Shim::Tensor other = nullptr;
  check(shim().new_handle(tensor_, &other), "new_tensor_handle");
  return reinterpret_cast<Shim::Value>(other);
}

Owned undefined_tensor() {
  Shim::Tensor made = nullptr;
  check(shim().undefined(&made), "new_uninitialized_tensor");
  return Owned(made);
}

List::List(Shim::Value value) : list_(reinterpret_cast<Shim::List>(value)) {
  check(shim().list_size(list_, &size_), "list_size");
}

Shim::Value List::operator[](std::size_t i) const {
  Shim::Value out = 0;
  check(shim().list_item(list_, i, &out), "list_get_item");
  return out;
}

Shim::Tensor optional_tensor(Shim::Value value) {
  return value ? reinterpret_cast<Shim::Tensor>(*reinterpret_cast<const Shim::Value*>(value)) : nullptr;
}

Owned take_optional(Shim::Value value) {
  const std::unique_ptr<Shim::Value> at(reinterpret_cast<Shim::Value*>(value));
  return at ? Owned(*at) : Owned();
}

void free_arguments(const char* types, const Shim::Value* stack) {
  const Shim& s = shim();
  for (int i = 0; types[i]; ++i) {
    const Shim::Value value = stack[i];
    switch (types[i]) {
      case 't': release(value); break;
      case 'o': take_optional(value); break;
      case 's': delete reinterpret_cast<Shim::Value*>(value); break;
      case 'T': {
        const List tensors(value);
        for (std::size_t at = 0; at < tensors.size(); ++at) release(tensors[at]);
        [[fallthrough]];
      }
      case 'l': check(s.delete_list(reinterpret_cast<Shim::List>(value)), "delete_list"); break;
      case 'x': check(s.delete_string(reinterpret_cast<Shim::String>(value)), "delete_string"); break;
      default: break;
    }
  }
}

View::View(Shim::Tensor of) {
  const Shim& s = shim();
  std::int64_t rank = 0;
  std::int32_t device = 0;
  std::int64_t *sizes = nullptr, *strides = nullptr;
  check(s.get_data_ptr(of, &tensor.data) | s.get_dim(of, &rank) | s.get_sizes(of, &sizes) |
            s.get_strides(of, &strides) | s.get_dtype(of, &dtype) | s.get_device_type(of, &device_type) |
            s.get_device_index(of, &device),
        "tensor");
  const bool on_device = device_type == s.cuda;
  tensor.device = {on_device ? ATTUNE_CUDA : ATTUNE_CPU, on_device ? device : 0};
  tensor.ndim = static_cast<std::int32_t>(rank), tensor.shape = sizes, tensor.strides = strides;
  if (dtype == s.f32 || dtype == s.f64)
    tensor.dtype = {ATTUNE_FLOAT, std::uint8_t(dtype == s.f64 ? 64 : 32), 1};
  else if (dtype == s.f16)
    tensor.dtype = {ATTUNE_FLOAT, 16, 1};
  else if (dtype == s.bf16)
    tensor.dtype = {ATTUNE_BFLOAT, 16, 1};
  else if (dtype == s.boolean)
    tensor.dtype = {ATTUNE_BOOL, 8, 1};
  else if (dtype == s.i32 || dtype == s.i64)
    tensor.dtype = {ATTUNE_INT, std::uint8_t(dtype == s.i64 ? 64 : 32), 1};
  else
    throw std::runtime_error("attune: a type that only Python passes on");
}

Owned new_tensor(const View& q, std::size_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                 std::int32_t dtype) {
  Shim::Tensor made = nullptr;
  check(shim().empty_strided(static_cast<std::int64_t>(rank), sizes, strides, dtype, q.device_type,
                             q.tensor.device.device_id, &made),
        "empty_strided");
  return Owned(made);
}

Owned new_tensor(const View& q, const Order& sizes, const Order& order) {
  Order strides{};
  std::int64_t step = 1;
  for (std::size_t i = 4; i-- > 0;) {
    const auto at = static_cast<std::size_t>(order[i]);
    strides[at] = step;
    step *= std::max<std::int64_t>(sizes[at], 1);
  }
  return new_tensor(q, 4, sizes.data(), strides.data(), q.dtype);
}

Owned empty_like(const View& q, std::int64_t width) {
  Order sizes{}, order{0, 1, 2, 3};
  std::copy_n(q.tensor.shape, 4, sizes.begin());
  sizes[3] = width;
  std::sort(order.begin(), order.end() - 1, [&](std::int64_t a, std::int64_t b) {
    return std::pair(-q.tensor.strides[a], a) < std::pair(-q.tensor.strides[b], b);
  });  // the last one has stride 1
  return new_tensor(q, sizes, order);
}

Owned rows_of(const View& q) {
  const auto* n = q.tensor.shape;
  const std::int64_t strides[] = {std::max<std::int64_t>(n[1], 1) * std::max<std::int64_t>(n[2], 1),
                                  std::max<std::int64_t>(n[2], 1), 1};
  return new_tensor(q, 3, n, strides, q.dtype == shim().f64 ? shim().f64 : shim().f32);
}

bool is_ordered(const attune_tensor& t) {
  for (int i = 0; i < t.ndim; ++i)
    if (t.strides[i] < 1 && t.shape[i] != 1) return false;
  return t.strides[t.ndim - 1] == 1;
}

bool are_usual(const View& q, const View& k, const View& v) {
  const Shim& s = shim();
  if (q.dtype != s.f32 && q.dtype != s.bf16 && q.dtype != s.f16) return false;
  double scores = 1;
  for (const View* one : {&q, &k, &v}) {
    if (one->dtype != q.dtype || one->tensor.ndim != 4) return false;
    for (int i = 0; i < 4; ++i)
      if (one->tensor.shape[i] == 0) return false;
  }
  for (int i = 0; i < 3; ++i) scores *= static_cast<double>(q.tensor.shape[i]);
  // Long calls on the host listen to Ctrl-C, which Python sets up.
  constexpr double long_call = 1 << 22;
  return q.device_type == s.cuda || scores * static_cast<double>(k.tensor.shape[2]) <= long_call;
}

void choose_torch(bool chosen) { engine_chosen = chosen; }
bool engine_is_chosen() { return engine_chosen.load(std::memory_order_relaxed); }

namespace {

/// Throws the message of an error, if there is one: torch gives it to Python.
void raise(attune_error* error) {
  if (!error) return;
  attune_said said{};
  said.size = sizeof said;
  attune_error_read(error, &said);
  const std::string message = said.message;
  attune_error_free(error);
  throw std::runtime_error(message);
}

std::size_t workspace_bytes(Entry& entry, const attune_call& call, const attune_with& with, bool recorded) {
  std::vector<std::int64_t> key = key_of(call);
  {
    const std::lock_guard lock(entry.mutex);
    for (const auto& [known, bytes] : entry.workspaces)
      if (known == key) return bytes;
  }
  std::size_t bytes = 0;
  raise(attune_prepare(entry.attention.get(), &call, &with, &bytes, nullptr));
  if (recorded) start_backward(entry.attention.get(), call, std::vector<bool>(call.n_captures));
  const std::lock_guard lock(entry.mutex);
  if (entry.workspaces.size() == Workspaces::most) entry.workspaces.erase(entry.workspaces.begin());
  entry.workspaces.emplace_back(std::move(key), bytes);
  return bytes;
}

}  // namespace

void run(Entry& entry, attune_call& call, bool recorded) {
  call.size = sizeof call;
  if (!call.params) call.params = entry.params.data(), call.n_params = entry.params.size();
  attune_with with{};
  with.size = sizeof with;
  Owned memory;
  if (call.q->device.device_type == ATTUNE_CUDA) {
    if (!shim().cuda_stream) throw std::runtime_error("attune: this torch has no CUDA");
    check(shim().cuda_stream(call.q->device.device_id, &with.stream), "get_current_cuda_stream");
    if (const std::size_t bytes = workspace_bytes(entry, call, with, recorded)) {
      const std::int64_t size = static_cast<std::int64_t>(bytes), step = 1;
      Shim::Tensor made = nullptr;
      check(shim().empty_strided(1, &size, &step, shim().u8, shim().cuda, call.q->device.device_id, &made),
            "empty_strided");
      memory = Owned(made);
      check(shim().get_data_ptr(made, &with.workspace), "get_data_ptr");
      with.workspace_bytes = bytes;
    }
  } else {
    with.workers = workers_of(call, [] {
      std::uint32_t threads = 1;
      check(shim().threads(&threads), "get_num_threads");
      return static_cast<int>(threads);
    });
  }
  raise(attune_run(entry.attention.get(), &call, &with));
}

}  // namespace attune::python

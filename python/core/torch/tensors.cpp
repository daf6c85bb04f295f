// python/core/torch/tensors.cpp — torch's tensors as C has them, and new ones; looks up torch's stable C ABI
#include "python/core/torch/tensors.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

namespace attune::python {

namespace nb = nanobind;

namespace {

struct Lookup {
  nb::handle address_of;
  bool complete = true;

  template <class Function>
  void find(Function& function, const char* name, bool promised = true) {
    function = reinterpret_cast<Function>(nb::cast<std::uintptr_t>(address_of(name)));
    complete = complete && (function || !promised);
  }

  void read(std::int32_t& number, const char* name) {
    std::int32_t (*function)() = nullptr;
    find(function, name);
    if (function) number = function();
  }
};

Shim all;

}  // namespace

bool find_shim(nb::handle address_of) {
  Shim s{};
  Lookup torch{address_of};
  torch.find(s.get_data_ptr, "aoti_torch_get_data_ptr");
  torch.find(s.get_dim, "aoti_torch_get_dim");
  torch.find(s.get_sizes, "aoti_torch_get_sizes");
  torch.find(s.get_strides, "aoti_torch_get_strides");
  torch.find(s.get_dtype, "aoti_torch_get_dtype");
  torch.find(s.get_device_type, "aoti_torch_get_device_type");
  torch.find(s.get_device_index, "aoti_torch_get_device_index");
  torch.find(s.empty_strided, "aoti_torch_empty_strided");
  torch.find(s.new_handle, "aoti_torch_new_tensor_handle");
  torch.find(s.undefined, "aoti_torch_new_uninitialized_tensor");
  torch.find(s.release, "aoti_torch_delete_tensor_object");
  Lookup operators{address_of};
  operators.find(s.is_defined, "aoti_torch_is_defined");
  operators.find(s.new_list, "torch_new_list_reserve_size");
  operators.find(s.list_push, "torch_list_push_back");
  operators.find(s.list_item, "torch_list_get_item");
  operators.find(s.list_size, "torch_list_size");
  operators.find(s.delete_list, "torch_delete_list");
  operators.find(s.string_text, "torch_string_c_str");
  operators.find(s.delete_string, "torch_delete_string");
  operators.find(s.threads, "torch_get_num_threads");
  operators.find(s.library, "aoti_torch_library_init_impl");
  operators.find(s.delete_library, "aoti_torch_delete_library_object");
  operators.find(s.implement, "torch_library_impl");
  operators.find(s.call, "torch_call_dispatcher");
  operators.find(s.fill, "aoti_torch_aten_fill__Scalar");
  operators.find(s.of_memory, "aoti_torch_create_tensor_from_blob");
  operators.find(s.grad_mode, "aoti_torch_grad_mode_is_enabled");
  if (!operators.complete) s.implement = nullptr;
  torch.read(s.f16, "aoti_torch_dtype_float16");
  torch.read(s.bf16, "aoti_torch_dtype_bfloat16");
  torch.read(s.f32, "aoti_torch_dtype_float32");
  torch.read(s.f64, "aoti_torch_dtype_float64");
  torch.read(s.e4m3, "aoti_torch_dtype_float8_e4m3fn");
  torch.read(s.u8, "aoti_torch_dtype_uint8");
  torch.read(s.i32, "aoti_torch_dtype_int32");
  torch.read(s.i64, "aoti_torch_dtype_int64");
  torch.read(s.u64, "aoti_torch_dtype_uint64");
  torch.read(s.boolean, "aoti_torch_dtype_bool");
  torch.read(s.cuda, "aoti_torch_device_type_cuda");
  torch.find(s.cuda_stream, "aoti_torch_get_current_cuda_stream", false);
  torch.find(s.to_python, "torch_tensor_to_pyobject", false);
  torch.find(s.own_cpu, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu", false);
  torch.find(s.own_cpu_backward, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu_backward", false);
  torch.find(s.own_flash, "aoti_torch_cuda__scaled_dot_product_flash_attention", false);
  torch.find(s.own_flash_backward, "aoti_torch_cuda__scaled_dot_product_flash_attention_backward", false);
  torch.find(s.own_cudnn, "aoti_torch_cuda__scaled_dot_product_cudnn_attention", false);
  torch.find(s.own_cudnn_backward, "aoti_torch_cuda__scaled_dot_product_cudnn_attention_backward", false);
  if (torch.complete) all = s;
  return torch.complete;
}

const Shim& shim() { return all; }

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

void free_arguments(const char* types, const Shim::Value* stack) {
  const Shim& s = shim();
  for (int i = 0; types[i]; ++i) {
    const Shim::Value value = stack[i];
    switch (types[i]) {
      case 't': release(value); break;
      case 'o':
        if (value) release(*reinterpret_cast<const Shim::Value*>(value));
        [[fallthrough]];
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

namespace {

/// Torch's types that attentions compute in, and those that only captures have.
constexpr std::pair<std::int32_t Shim::*, attune_dtype> types[] = {
    {&Shim::f32, {ATTUNE_FLOAT, 32, 1}}, {&Shim::bf16, {ATTUNE_BFLOAT, 16, 1}}, {&Shim::f16, {ATTUNE_FLOAT, 16, 1}},
    {&Shim::f64, {ATTUNE_FLOAT, 64, 1}}, {&Shim::boolean, {ATTUNE_BOOL, 8, 1}}, {&Shim::i32, {ATTUNE_INT, 32, 1}},
    {&Shim::i64, {ATTUNE_INT, 64, 1}},   {&Shim::e4m3, {ATTUNE_E4M3, 8, 1}}};

/// Of torch's number; without bits for types that attentions do not read.
attune_dtype dtype_of(std::int32_t type) {
  for (const auto& [number, known] : types)
    if (shim().*number == type) return known;
  return {};
}

std::size_t at(int i) { return static_cast<std::size_t>(i); }

Layout layout_of(const attune_tensor& t, int rank) {
  Layout out{std::clamp(rank, 0, 4)};
  std::copy_n(t.shape, out.rank, out.sizes.begin());
  std::copy_n(t.strides, out.rank, out.strides.begin());
  return out;
}

/// True if no element is there for two, and none is beside the tensor; as torch has it, also for an empty one.
bool is_dense(const Layout& t) {
  if (std::find(t.sizes.begin(), t.sizes.begin() + t.rank, 0) != t.sizes.begin() + t.rank) return true;
  std::array<std::pair<std::int64_t, std::int64_t>, 4> order;  // stride and extent
  auto last = order.begin();
  for (std::size_t i = 0; i < at(t.rank); ++i)
    if (t.sizes[i] != 1) *last++ = {t.strides[i], t.sizes[i]};
  std::sort(order.begin(), last);
  std::int64_t step = 1;
  for (auto one = order.begin(); one != last; ++one) {
    if (one->first != step) return false;
    step *= one->second;
  }
  return true;
}

/// The order that torch gives a tensor like one with holes: sorted by strides, stably, where a stride of 0 has no place
/// of its own.
Layout::Order order_of(const Layout& t) {
  Layout::Order out{};  // from the innermost to the outermost, until it is turned round
  std::iota(out.rend() - t.rank, out.rend(), 0);
  const auto is_outside = [&](int a, int b) {  // negative: b is outside; 0: either may be
    const std::int64_t step = t.strides[at(a)], other = t.strides[at(b)];
    if (step == 0 || other == 0) return 0;
    return step != other ? (step < other ? -1 : 1) : t.sizes[at(a)] > t.sizes[at(b)] ? 1 : 0;
  };
  for (std::size_t i = 1; i < at(t.rank); ++i)
    for (std::size_t here = i, before = i; before-- > 0;) {
      const int found = is_outside(out[before], out[here]);
      if (found < 0) break;
      if (found > 0) std::swap(out[before], out[here]), here = before;
    }
  std::reverse(out.begin(), out.begin() + t.rank);
  return out;
}

constexpr Layout::Order as_they_come{0, 1, 2, 3};

}  // namespace

std::int32_t type_of(attune_dtype type) {
  for (const auto& [number, known] : types)
    if (same(known, type)) return shim().*number;
  return shim().f32;  // attune refuses the call by this type
}

attune_tensor memory_of(Shim::Tensor of) {
  const Shim& s = shim();
  attune_tensor out{};
  std::int64_t rank = 0;
  std::int32_t type = 0, kind = 0, device = 0;
  check(s.get_data_ptr(of, &out.data) | s.get_dim(of, &rank) | s.get_sizes(of, &out.shape) |
            s.get_strides(of, &out.strides) | s.get_dtype(of, &type) | s.get_device_type(of, &kind) |
            s.get_device_index(of, &device),
        "tensor");
  out.ndim = static_cast<std::int32_t>(rank);
  out.device = {kind == s.cuda ? ATTUNE_CUDA : ATTUNE_CPU, kind == s.cuda ? device : 0};
  out.dtype = dtype_of(type);
  if (out.dtype.bits == 0) throw std::runtime_error("attune: a type that only Python passes on");
  return out;
}

Layout Layout::in(const Order& order) const {
  Layout out = *this;
  std::int64_t step = 1;
  for (int i = rank; i-- > 0;) {
    const std::size_t of = at(order[at(i)]);
    out.strides[of] = step;
    step *= std::max<std::int64_t>(sizes[of], 1);
  }
  return out;
}

Made new_tensor(attune_device on, std::int32_t type, const Layout& layout) {
  const Shim& s = shim();
  Shim::Tensor made = nullptr;
  constexpr std::int32_t cpu = 0;
  if (s.empty_strided(layout.rank, layout.sizes.data(), layout.strides.data(), type,
                      on.device_type == ATTUNE_CUDA ? s.cuda : cpu, on.device_id, &made) != 0)
    throw NoMemory(on, std::accumulate(layout.sizes.begin(), layout.sizes.begin() + layout.rank, std::int64_t{1},
                                       std::multiplies()));
  Made out{Owned(made)};
  out.at.device = on, out.at.ndim = layout.rank;
  check(s.get_data_ptr(made, &out.at.data) | s.get_sizes(made, &out.at.shape) | s.get_strides(made, &out.at.strides),
        "tensor");
  out.at.dtype = dtype_of(type);
  return out;
}

Made empty_like(const attune_tensor& t) {
  const Layout layout = layout_of(t, t.ndim);
  return new_tensor(t.device, type_of(t.dtype), is_dense(layout) ? layout : layout.in(order_of(layout)));
}

Made new_output(const attune_tensor& q, const attune_tensor& v) {
  Layout layout = layout_of(q, q.ndim);
  const std::size_t last = at(std::max(layout.rank - 1, 0));
  const std::int64_t width = v.ndim > 0 ? v.shape[v.ndim - 1] : 1;
  if (width != layout.sizes[last] || layout.strides[last] != 1 || !is_dense(layout)) {
    Layout::Order order = as_they_come;
    std::stable_sort(order.begin(), order.begin() + last, [&](int a, int b) { return q.strides[a] > q.strides[b]; });
    layout.sizes[last] = width;
    layout = layout.in(order);
  }
  return new_tensor(q.device, q.dtype.code == ATTUNE_E4M3 ? shim().bf16 : type_of(q.dtype), layout);
}

Made new_rows(const attune_tensor& q) {
  Layout layout = layout_of(q, q.ndim - 1);
  if (q.ndim == 3) std::swap(layout.sizes[0], layout.sizes[1]);  // packed: [heads, tokens]
  return new_tensor(q.device, q.dtype.bits == 64 ? shim().f64 : shim().f32, layout.in(as_they_come));
}

}  // namespace attune::python

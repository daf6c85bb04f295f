// python/core/torch_shim.cpp — looks up torch's stable C ABI in the torch that is loaded
#include "python/core/torch_shim.h"

#include <stdexcept>
#include <string>

namespace nb = nanobind;

namespace attune::python {
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

}  // namespace attune::python

// python/core/torch_shim.h — the part of torch's stable C ABI that attune calls, found in the torch that is loaded
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace attune::python {

/// Torch promises these functions from 2.10 on. They are looked up at run time, so attune is built without torch, once
/// for all its versions. Each returns 0 on success.
struct Shim {
  using Tensor = void*;
  using List = void*;
  using String = void*;
  using Library = void*;
  /// A tensor, a list, a string, an int, a bool or a double of an operator, or the address of one that is optional.
  using Value = std::uint64_t;
  using Kernel = void (*)(Value* stack, std::uint64_t inputs, std::uint64_t outputs);

  std::int32_t (*get_data_ptr)(Tensor, void**);
  std::int32_t (*get_dim)(Tensor, std::int64_t*);
  std::int32_t (*get_sizes)(Tensor, std::int64_t**);
  std::int32_t (*get_strides)(Tensor, std::int64_t**);
  std::int32_t (*get_dtype)(Tensor, std::int32_t*);
  std::int32_t (*get_device_type)(Tensor, std::int32_t*);
  std::int32_t (*get_device_index)(Tensor, std::int32_t*);
  std::int32_t (*empty_strided)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                                std::int32_t dtype, std::int32_t device_type, std::int32_t device, Tensor*);
  std::int32_t (*new_handle)(Tensor, Tensor*);
  std::int32_t (*undefined)(Tensor*);
  std::int32_t (*is_defined)(Tensor, bool*);
  std::int32_t (*release)(Tensor);
  std::int32_t (*new_list)(std::size_t, List*);
  std::int32_t (*list_push)(List, Value);
  std::int32_t (*list_item)(List, std::size_t, Value*);
  std::int32_t (*list_size)(List, std::size_t*);
  std::int32_t (*delete_list)(List);
  std::int32_t (*string_text)(String, const char**);
  std::int32_t (*delete_string)(String);
  std::int32_t (*threads)(std::uint32_t*);
  std::int32_t (*library)(const char* space, const char* key, const char* file, std::uint32_t line, Library*);
  std::int32_t (*delete_library)(Library);
  std::int32_t (*implement)(Library, const char* name, Kernel, std::uint64_t version);
  std::int32_t (*call)(const char* name, const char* overload, Value* stack, std::uint64_t version);
  bool (*grad_mode)();
  std::int32_t (*cuda_stream)(std::int32_t device, void**);  // null in a torch without CUDA

  // Torch's own kernels of its attentions, without the dispatcher; each is null in a torch that lacks it. Their
  // arguments are those of the operators, then the addresses of the results.
  std::int32_t (*own_cpu)(Tensor, Tensor, Tensor, double, std::int32_t, Tensor*, double*, Tensor*, Tensor*);
  std::int32_t (*own_cpu_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, double, std::int32_t, Tensor*,
                                   double*, Tensor*, Tensor*, Tensor*);
  std::int32_t (*own_flash)(Tensor, Tensor, Tensor, double, std::int32_t, std::int32_t, double*, Tensor*, Tensor*,
                            Tensor*, Tensor*, std::int64_t*, std::int64_t*, Tensor*, Tensor*, Tensor*);
  std::int32_t (*own_flash_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, std::int64_t,
                                     std::int64_t, double, std::int32_t, Tensor, Tensor, double*, Tensor*, Tensor*,
                                     Tensor*);
  std::int32_t (*own_cudnn)(Tensor, Tensor, Tensor, Tensor*, std::int32_t, double, std::int32_t, std::int32_t, double*,
                            Tensor*, Tensor*, Tensor*, Tensor*, std::int64_t*, std::int64_t*, Tensor*, Tensor*,
                            Tensor*);
  std::int32_t (*own_cudnn_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                     Tensor, std::int64_t, std::int64_t, double, std::int32_t, double*, Tensor*,
                                     Tensor*, Tensor*);

  std::int32_t f16, bf16, f32, f64, u8, i32, i64, u64, boolean;  // torch's numbers of types
  std::int32_t cuda;                                             // and of a kind of device
};

/// The version of the stable ABI that attune speaks: 2.10.
constexpr std::uint64_t shim_version = 0x020A'0000'0000'0000;

/// Looks up all functions: `address_of`(name) is a function of Python that gives 0 for one that does not exist. False
/// if the loaded torch lacks one that it promises.
bool find_shim(nanobind::handle address_of);

/// Only after find_shim has found it.
const Shim& shim();

}  // namespace attune::python

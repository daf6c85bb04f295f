// python/core/torch/tensors.h — torch's stable C ABI, its tensors as C has them, and new ones
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include <attune/c.h>

namespace attune::python {

/// Torch promises these functions, of tensors from 2.9 and of operators from 2.10 on. They are looked up at run time,
/// so attune is built without torch, once for all its versions. Each returns 0 on success.
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
  std::int32_t (*fill)(Tensor, double);
  std::int32_t (*of_memory)(void* data, std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                            std::int64_t offset, std::int32_t dtype, std::int32_t device_type, std::int32_t device,
                            Tensor*);
  bool (*grad_mode)();
  std::int32_t (*cuda_stream)(std::int32_t device, void**);             // null in a torch without CUDA
  std::int32_t (*to_python)(Tensor, void* python_type, void** object);  // null before torch 2.14

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

  std::int32_t f16, bf16, f32, f64, e4m3, u8, i32, i64, u64, boolean;  // torch's numbers of types
  std::int32_t cuda;                                                   // and of a kind of device
};

/// The version of the stable ABI that attune speaks: 2.10.
constexpr std::uint64_t shim_version = 0x020A'0000'0000'0000;

/// Looks up all functions: `address_of`(name) is a function of Python that gives 0 for one that does not exist. False
/// if the loaded torch lacks one of tensors.
bool find_shim(nanobind::handle address_of);

/// Only after find_shim has found it. `implement` is null if torch lacks one of operators.
const Shim& shim();

/// Throws if a function of torch failed.
void check(std::int32_t status, const char* what);

/// An owned reference to a tensor of torch.
class Owned {
 public:
  explicit Owned(Shim::Tensor tensor = nullptr) : tensor_(tensor) {}
  explicit Owned(Shim::Value value) : tensor_(reinterpret_cast<Shim::Tensor>(value)) {}
  Owned(Owned&& other) noexcept : tensor_(std::exchange(other.tensor_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    return *this;
  }
  ~Owned() {
    if (tensor_) shim().release(tensor_);
  }

  Shim::Tensor get() const { return tensor_; }
  Shim::Value value() { return reinterpret_cast<Shim::Value>(std::exchange(tensor_, nullptr)); }
  Shim::Value again() const;

 private:
  Shim::Tensor tensor_;
};

/// Gives up a reference to a tensor.
inline void release(Shim::Value tensor) { const Owned done(tensor); }

/// A tensor that is none, for a result that torch leaves undefined.
Owned undefined_tensor();

/// A list of torch's, which stays its owner's.
class List {
 public:
  explicit List(Shim::Value value);
  std::size_t size() const { return size_; }
  Shim::Value operator[](std::size_t i) const;

 private:
  Shim::List list_;
  std::size_t size_ = 0;
};

/// Frees the arguments of an operator on its stack, so that results can take their places. `types` has a letter for
/// each: t a tensor, o an optional one, l a list, T a list of tensors, x a text, s an optional number, n a number.
void free_arguments(const char* types, const Shim::Value* stack);

/// The memory of a tensor of torch, whose shape and strides stay the tensor's. Throws for types that only Python passes
/// on.
attune_tensor memory_of(Shim::Tensor tensor);

inline bool same(attune_dtype a, attune_dtype b) { return a.code == b.code && a.bits == b.bits; }
inline bool is_on_gpu(const attune_tensor& t) { return t.device.device_type == ATTUNE_CUDA; }

/// Torch had no memory for a tensor.
struct NoMemory : std::runtime_error {
  NoMemory(attune_device device, std::int64_t elements)
      : std::runtime_error("attune: torch's empty_strided failed"), on(device), count(elements) {}
  attune_device on;
  std::int64_t count;
};

/// A new tensor of torch, and its memory.
struct Made {
  Owned owner{};
  attune_tensor at{};
};

/// Of a tensor of at most four dimensions. Attune refuses others by name; what is made for them has the first four.
struct Layout {
  using Order = std::array<int, 4>;
  int rank = 0;
  std::array<std::int64_t, 4> sizes{}, strides{};

  /// Strides without holes. `order`: the dimensions from the outermost in memory to the innermost.
  Layout in(const Order& order) const;
};

/// `type` is torch's number.
Made new_tensor(attune_device on, std::int32_t type, const Layout& layout);
/// As torch.empty_like.
Made empty_like(const attune_tensor& t);
/// For the output: the dimensions have the memory order of q's, with the last one innermost.
Made new_output(const attune_tensor& q, const attune_tensor& v);
/// One number a row of q.
Made new_rows(const attune_tensor& q);

/// Torch's number of a type.
std::int32_t type_of(attune_dtype type);

}  // namespace attune::python

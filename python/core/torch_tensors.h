// python/core/torch_tensors.h — torch's tensors as C has them, and new ones for results and working memory
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>

#include <attune/c.h>

#include "python/core/torch_shim.h"

namespace attune::python {

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

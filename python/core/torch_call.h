// python/core/torch_call.h — calls of attune from kernels of torch's operators, over its stable C ABI, without Python
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <attune/c.h>

#include "python/core/torch_shim.h"

namespace attune::python {

/// An attention and its integers, for kernels that are called with tensors alone.
struct Entry {
  std::shared_ptr<attune_attention> attention{};
  std::vector<double> params{};
  std::mutex mutex{};  ///< guards the rest
  std::vector<std::pair<std::vector<std::int64_t>, std::size_t>> workspaces{};
};

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

/// The tensor of an operator's optional argument, which stays its owner's; null if there is none.
Shim::Tensor optional_tensor(Shim::Value value);
/// Takes that tensor over.
Owned take_optional(Shim::Value value);

/// Frees the arguments of an operator on its stack, so that results can take their places. `types` has a letter for
/// each: t a tensor, o an optional one, l a list, T a list of tensors, x a text, s an optional number, n a number.
void free_arguments(const char* types, const Shim::Value* stack);

/// A tensor of torch as C has it; throws for types that no attention reads.
struct View {
  attune_tensor tensor{};
  std::int32_t dtype = 0, device_type = 0;

  explicit View(Shim::Tensor of);
  explicit View(const Owned& of) : View(of.get()) {}
};

using Order = std::array<std::int64_t, 4>;

/// A tensor of q's type and device. `order`: its dimensions from the outermost to the innermost.
Owned new_tensor(const View& q, const Order& sizes, const Order& order);
/// A tensor with the order of q's dimensions in memory, whose last one has `width` elements. q is ordered.
Owned empty_like(const View& q, std::int64_t width);
/// Tensors of any type on q's device.
Owned new_tensor(const View& q, std::size_t rank, const std::int64_t* sizes, const std::int64_t* strides,
                 std::int32_t dtype);
/// One number a row of q.
Owned rows_of(const View& q);

/// True if the last dimension is the innermost in memory and no element is there for several, as in an expanded tensor.
bool is_ordered(const attune_tensor& t);
/// True for the types and sizes that kernels over the C ABI take; the others are Python's.
bool are_usual(const View& q, const View& k, const View& v);
/// While an engine is chosen, they take no call.
void choose_torch(bool chosen);
bool engine_is_chosen();

/// Runs a call whose tensors and captures are set, and its integers if they are not the entry's, with torch's stream,
/// memory and threads; throws what attune says. `recorded`: a forward whose backward will be wanted, so that its
/// kernels are compiled meanwhile.
void run(Entry& entry, attune_call& call, bool recorded);

}  // namespace attune::python

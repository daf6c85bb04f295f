// runtime/engines/cuda/readable_backward.h — a backward whose grad_o every kernel can read, copied where it is not
#pragma once

#include <optional>

#include "runtime/engines/call.h"
#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/workspace.h"

namespace attune::runtime::cuda {

/// torch's `o.sum().backward()` gives a grad_o of one number with strides of 0, which TMA cannot read. If only grad_o
/// keeps a call from the kernels that use TMA, contiguous rows of it go to the front of the call's workspace.
class ReadableBackward {
 public:
  explicit ReadableBackward(const Call& of);
  ReadableBackward(const ReadableBackward&) = delete;
  ReadableBackward& operator=(const ReadableBackward&) = delete;

  /// The call that kernels are chosen for. Its grad_o has no memory before copy().
  const Call& call() const { return readable_ ? *readable_ : of_; }
  std::size_t bytes() const { return room_.bytes(); }
  /// Loads the kernel that copies, which may not happen during a capture.
  void load(const Facts& device, cu::Stream stream) const;
  /// Enqueues the copy to the first bytes() of `memory`, and returns the memory that follows.
  std::byte* copy(const Facts& device, std::byte* memory, cu::Stream stream);

 private:
  const Call& of_;
  WorkspaceLayout room_;
  std::optional<Backward> backward_;
  std::optional<Call> readable_;
};

}  // namespace attune::runtime::cuda

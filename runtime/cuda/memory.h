// runtime/cuda/memory.h — memory of a device, and copies from and to it
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/cuda/driver.h"
#include <attune/tensor.h>

namespace attune::runtime::cuda {

/// Zeroed bytes of a device; null where it has not as many left. They may outlive the driver: then the driver has freed
/// them.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

/// One of both is on a device. Behind what `stream` has to do, and done when this returns.
void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream);

/// Memory in the order of a stream: taken from its pool, and given back to it. Both in a current context of the device.
class Pooled {
 public:
  Pooled(const Facts& device, std::size_t bytes, cu::Stream stream);
  ~Pooled();
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  cu::Stream stream_;
  cu::Address at_ = 0;
  std::span<std::byte> bytes_;
};

/// Whether what is put on this CUstream becomes part of a graph: then nothing can be waited for.
bool is_captured(void* stream);

}  // namespace attune::runtime::cuda

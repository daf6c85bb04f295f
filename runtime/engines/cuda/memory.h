// runtime/engines/cuda/memory.h — device memory, and copies from and to it
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "runtime/engines/cuda/driver.h"
#include <attune/tensor.h>

namespace attune::runtime::cuda {

/// Zeroed bytes on a device; null if the device has too little memory left. If the pointer outlives the driver, the
/// driver has already freed the bytes.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

/// Copies between two sides, at least one of which is on a device. Runs after the work on `stream`, and is done when
/// this returns.
void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream);

/// Memory taken from a device's pool and given back to it in a stream's order. Both need a current context of the
/// device.
class Pooled {
 public:
  Pooled(const Facts& device, std::size_t bytes, cu::Stream stream) : stream_(stream) {
    if (bytes > 0) take(device, bytes);
  }
  ~Pooled() {
    if (at_) give_back();
  }
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void take(const Facts& device, std::size_t bytes);
  void give_back();

  cu::Stream stream_;
  cu::Address at_ = 0;
  std::span<std::byte> bytes_;
};

/// True if work on this CUstream becomes part of a graph. Nothing can then be waited for.
bool is_captured(void* stream);

}  // namespace attune::runtime::cuda

// tests/numerics/moved.h — a host tensor's copy on a device, of any strides
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include <attune/tensor.h>

namespace attune::tests {

/// A device copy of a host tensor, with all the memory that its elements span, and the same alignment.
class Moved {
 public:
  explicit Moved(const Tensor& host, Device device = Device::cuda()) : on_device_(host) {
    on_device_.device = device;
    if (!host.given() || host.size() == 0) return;
    std::int64_t least = 0, most = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(host.rank); ++i)
      (host.strides[i] < 0 ? least : most) += (host.shape[i] - 1) * host.strides[i];
    const auto width = static_cast<std::int64_t>(size_of(host.dtype));
    auto* first = static_cast<std::byte*>(host.data) + least * width;
    const std::int64_t bytes = (most - least + 1) * width, grain = 256;
    const auto shift = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(first) % grain);
    memory_ = detail::allocate(device, DType::u8, std::array{bytes + grain});
    here_ = Tensor(first, DType::u8, {bytes});
    there_ = Tensor(static_cast<std::byte*>(memory_.get()) + shift, DType::u8, {bytes}, {}, device);
    on_device_.data = static_cast<std::byte*>(there_.data) - least * width;
    copy(here_, there_);
  }
  const Tensor& tensor() const { return on_device_; }
  void back() const {
    if (memory_) copy(there_, here_);
  }

 private:
  Tensor on_device_, here_, there_;
  std::shared_ptr<void> memory_;
};

}  // namespace attune::tests

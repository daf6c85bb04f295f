// runtime/engines/emulated/driver.h — replaces NVIDIA's driver: host memory, streams that complete at once, kernels
// that are libraries
#pragma once

#include <atomic>

#include "runtime/engines/cuda/platform.h"
#include "runtime/engines/emulated/emulated.h"

namespace attune::runtime::emulated {

const cuda::Found& find_driver();
/// The platform in use, if it is emulated: its one device.
struct OfGpu : cuda::Platform {
  explicit OfGpu(const Gpu& of);

  Gpu gpu;
  mutable std::atomic<std::uint64_t> launches{0};
};
const OfGpu& emulated_gpu();

}  // namespace attune::runtime::emulated

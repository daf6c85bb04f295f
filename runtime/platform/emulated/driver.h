// runtime/platform/emulated/driver.h — replaces NVIDIA's driver: host memory, streams that complete at once, kernels
// that are libraries
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/machine/mutex.h"
#include "runtime/platform/emulated/emulated.h"
#include "runtime/platform/nvidia/driver.h"
#include "runtime/platform/platform.h"

namespace attune::runtime::emulated {

/// Guards the device: whoever changes its memory holds it, a launch from begin to end.
extern Mutex device_mutex;

/// Memory of the host, filled with NaN.
cuda::cu::Result take(cuda::cu::Address* into, std::size_t bytes);
cuda::cu::Result give_back(cuda::cu::Address address);

using Contents = std::vector<std::pair<cuda::cu::Address, std::vector<std::byte>>>;
/// With device_mutex held: a copy of the device's memory; empty if there is too much of it to be copied for each
/// launch.
Contents contents();
/// With device_mutex held: puts earlier contents into the memory that still exists. Returns the function that brings
/// the later ones back, except for bytes that were written meanwhile.
std::function<void()> put_back(const Contents& earlier);

const cuda::Found& find_driver();
/// The platform in use, if it is emulated: its one device.
struct OfGpu : cuda::Platform {
  explicit OfGpu(const Gpu& of);

  Gpu gpu;
  mutable std::atomic<std::uint64_t> launches{0};
};
const OfGpu& emulated_gpu();

}  // namespace attune::runtime::emulated

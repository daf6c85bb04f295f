// runtime/engines/emulated/driver.h — replaces NVIDIA's driver: host memory, streams that complete at once, kernels
// that are libraries
#pragma once

#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/emulated/emulated.h"

namespace attune::runtime::emulated {

const cuda::Found& find_driver();
/// Sets the one device of the emulated driver.
void set_gpu(const Gpu& gpu);
/// Not 0, and different for each kind of device.
std::uint64_t generation();

}  // namespace attune::runtime::emulated

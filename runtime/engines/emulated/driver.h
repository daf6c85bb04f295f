// runtime/engines/emulated/driver.h — what stands in for NVIDIA's driver: memory of the host, streams that are done at
// once, kernels that are libraries
#pragma once

#include "runtime/engines/cuda/driver.h"
#include "runtime/engines/emulated/emulated.h"

namespace attune::runtime::emulated {

const cuda::Found& find_driver();
/// The one device that it has.
void set_gpu(const Gpu& gpu);
/// Not 0, and another number for each kind of device.
std::uint64_t generation();

}  // namespace attune::runtime::emulated

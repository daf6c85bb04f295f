// runtime/engines/emulated/device_memory.h — the memory of an emulated device, and its contents at earlier times
#pragma once

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "runtime/engines/cuda/driver.h"
#include "runtime/machine/mutex.h"

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

}  // namespace attune::runtime::emulated

// runtime/ranks/carry/device_state.cpp — state that calls over ranks share on a device: streams, and memory for keys
#include "runtime/ranks/carry/device_state.h"

#include <attune/error.h>
#include <fmt/format.h>

#include "runtime/platform/memory.h"

namespace attune::runtime::ranks {

DeviceState::DeviceState(int device) : device_(device) {}

DeviceState::~DeviceState() {
  try {
    const cuda::Current current(device_);
    last.wait();
  } catch (...) {
    // At process exit the driver may already be unloaded, and the memory is then gone too.
  }
}

std::byte* DeviceState::memory(std::size_t bytes) {
  if (bytes > bytes_) {
    // Freeing does not wait for launches that still use the memory.
    last.wait();
    memory_.reset();
    bytes_ = 0;
    memory_ = cuda::allocate(device_, bytes);
    if (!memory_)
      throw Error("device-memory", fmt::format("cuda:{} has no {} bytes left", device_, bytes), {},
                  "a rank allocates memory for the keys of two groups of heads, at the length of the whole call",
                  "send keys in more groups (Sharding::How::groups), or free memory");
    bytes_ = bytes;
    filled = {};
  }
  return static_cast<std::byte*>(memory_.get());
}

}  // namespace attune::runtime::ranks

// runtime/ranks/carry/device_state.h — state that calls over ranks share on a device: streams, and memory for keys
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/platform/memory.h"

namespace attune::runtime::ranks {

class DeviceState {
 public:
  /// Makes streams of the current context, which must be the device's.
  explicit DeviceState(int device);
  /// Waits for the work that still uses the memory.
  ~DeviceState();
  DeviceState(const DeviceState&) = delete;
  DeviceState& operator=(const DeviceState&) = delete;

  int device() const { return device_; }

  /// For exchanges. Its priority is higher: an exchange begins before launches that become ready at the same time.
  cuda::cu::Stream travel() const { return travel_.get(); }
  /// For copies of the rank's own keys, concurrent with the exchange of other ranks' keys.
  cuda::cu::Stream within() const { return within_.get(); }
  /// The launches of a group use the caller's stream and these streams in turn, so that one launch fills the SMs that
  /// the last tiles of another launch leave idle.
  static constexpr std::size_t beside_count = 3;
  cuda::cu::Stream beside(std::size_t i) const { return beside_[i].get(); }

  /// At least `bytes` bytes, which were 0 when they were allocated. Throws the Error `device-memory`.
  std::byte* memory(std::size_t bytes);

  std::mutex mutex;   ///< held while a call is put on its streams
  cuda::Moment last;  ///< the end of the previous call
  /// The keys at the beginning of the memory. Rows that a call with these keys does not need are still 0.
  struct Filled {
    const void* layer = nullptr;
    std::int64_t groups = 0;
    bool one = false;  ///< true if values are columns of keys
    bool operator==(const Filled&) const = default;
  };
  Filled filled;

 private:
  int device_;
  cuda::OwnStream travel_{cuda::OwnStream::Priority::high}, within_{cuda::OwnStream::Priority::high};
  std::array<cuda::OwnStream, beside_count> beside_{cuda::OwnStream(cuda::OwnStream::Priority::usual),
                                                    cuda::OwnStream(cuda::OwnStream::Priority::usual),
                                                    cuda::OwnStream(cuda::OwnStream::Priority::usual)};
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace attune::runtime::ranks

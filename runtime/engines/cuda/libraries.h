// runtime/engines/cuda/libraries.h — the code of a kernel and its companions on a device: unloaded once no one can run
// it
#pragma once

#include <atomic>
#include <vector>

#include "runtime/engines/cuda/driver.h"

namespace attune::runtime::cuda {

/// Libraries of the driver. Launches outlive the calls that put them on a stream, and graphs outlive those: so the code
/// goes only if all its launches were put on one stream, none of them within a capture, and that stream has come to the
/// end of them. Else it stays for as long as the process does.
class Libraries {
 public:
  Libraries(int device, std::vector<cu::Library> all) : device_(device), all_(std::move(all)) {}
  /// Hands them over to unload_finished, unless they stay.
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  /// Before launches of a call are put on the stream, in whose context the caller is.
  void used_on(cu::Stream stream);
  bool may_go() const { return !stays_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned long long none = ~0ull;
  int device_;
  std::vector<cu::Library> all_;
  std::atomic<unsigned long long> stream_ = none;  ///< the driver's number of it, which no later stream gets
  std::atomic<bool> stays_ = false;
};

/// Unloads what was handed over and whose stream has come to the end of it. The streams of others are asked when they
/// are given here: they may be gone by now. `stream` is of the current context, on this device, and not captured.
void unload_finished(int device, cu::Stream stream);

}  // namespace attune::runtime::cuda

// runtime/engines/cuda/libraries.h — the code of a kernel and its companions on a device: unloaded once nothing can run
// it
#pragma once

#include <atomic>
#include <vector>

#include "runtime/engines/cuda/driver.h"

namespace attune::runtime::cuda {

/// While this object lives, the calling thread may load code and query events during other threads' captures without
/// invalidating them.
class DespiteCaptures {
 public:
  DespiteCaptures() { driver().cuThreadExchangeStreamCaptureMode.raw(&mode_); }
  ~DespiteCaptures() { driver().cuThreadExchangeStreamCaptureMode.raw(&mode_); }
  DespiteCaptures(const DespiteCaptures&) = delete;
  DespiteCaptures& operator=(const DespiteCaptures&) = delete;

 private:
  cu::CaptureMode mode_ = cu::CaptureMode::relaxed;
};

/// Libraries of the driver. Launches outlive the calls that enqueue them, and graphs outlive launches. The code is
/// therefore unloaded only if all its launches were enqueued on one stream, none of them within a capture, and that
/// stream has completed them. Otherwise it stays loaded until the process ends.
class Libraries {
 public:
  Libraries(int device, std::vector<cu::Library> all) : driver_(driver()), device_(device), all_(std::move(all)) {}
  /// Hands the libraries over to unload_finished, unless they stay loaded.
  ~Libraries();
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;

  /// Must be called before launches of a call are enqueued on the stream, with the stream's context current.
  void used_on(cu::Stream stream);
  bool may_go() const { return !stays_.load(std::memory_order_relaxed); }

 private:
  static constexpr unsigned long long none = ~0ull;
  const Driver& driver_;  ///< which may not be that of the thread that lets go of the kernel
  int device_;
  std::vector<cu::Library> all_;
  std::atomic<unsigned long long> stream_ = none;  ///< the driver's id of the stream, which no later stream gets
  std::atomic<bool> stays_ = false;
};

/// Unloads the libraries that were handed over and whose launches are complete. Only `stream` itself is queried: other
/// streams may no longer exist, so their libraries wait for a call with their stream. `stream` belongs to the current
/// context, on this device, and is not capturing.
void unload_finished(int device, cu::Stream stream);

}  // namespace attune::runtime::cuda

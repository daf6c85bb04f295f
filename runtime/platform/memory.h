// runtime/platform/memory.h — device memory, streams and events, copies, and times by a device's own clock
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include <attune/tensor.h>

#include "runtime/platform/nvidia/driver.h"

namespace attune::runtime::cuda {

/// Zeroed bytes on a device; null if the device has too little memory left. If the pointer outlives the driver, the
/// driver has already freed the bytes.
std::shared_ptr<void> allocate(int device, std::size_t bytes);

/// Copies between two sides, at least one of which is on a device. Runs after the work on `stream`, and is done when
/// this returns.
void copy(const Tensor& from, const Tensor& to, std::size_t bytes, void* stream);

/// Memory taken from a device's pool and given back to it in a stream's order. Both need a current context of the
/// device.
class Pooled {
 public:
  Pooled(const Facts& device, std::size_t bytes, cu::Stream stream) : stream_(stream) {
    if (bytes > 0) take(device, bytes);
  }
  ~Pooled() {
    if (at_) give_back();
  }
  Pooled(const Pooled&) = delete;
  Pooled& operator=(const Pooled&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void take(const Facts& device, std::size_t bytes);
  void give_back();

  cu::Stream stream_;
  cu::Address at_ = 0;
  std::span<std::byte> bytes_;
};

/// True if work on this CUstream becomes part of a graph. Nothing can then be waited for.
bool is_captured(void* stream);

/// A point in a stream's work that other streams, of any device, can wait for.
class Moment {
 public:
  Moment() = default;
  /// The moment after all current work of the stream. The stream belongs to the current context.
  explicit Moment(cu::Stream stream);
  /// Later work of the stream runs after this moment. A default moment has already passed.
  void awaited_by(cu::Stream stream) const;
  /// Returns once it has passed.
  void wait() const;
  bool operator==(const Moment&) const = default;

 private:
  std::shared_ptr<void> event_;
};

/// A stream of the current context that has no implicit synchronization with other streams.
class OwnStream {
 public:
  enum class Priority : std::uint8_t { usual, high };
  explicit OwnStream(Priority priority);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cu::Stream get() const { return stream_; }

 private:
  cu::Context context_ = nullptr;
  cu::Stream stream_ = nullptr;
};

/// Runs of equal length, which begin `stride` bytes apart.
struct Runs {
  void* first = nullptr;
  std::size_t bytes = 0;  ///< bytes of each run
  std::size_t count = 1, stride = 0;
};
/// Enqueues a copy by copy engines, which use no SM, on a stream of the current context. On an H100 whose SMs were all
/// busy, rows of 256 bytes were copied to another H100 at 358 GB/s, and within the GPU at 870 GB/s. Both sides must
/// have the same number of runs, of the same size.
void copy_runs(const Runs& from, const Runs& to, cu::Stream stream);
/// Sets bytes to 0, as a copy.
void clear_bytes(void* first, std::size_t bytes, cu::Stream stream);

/// The context that is current; null: none.
cu::Context current_context();
/// Lets streams of the current context copy from and to memory of another context directly, if the devices allow it;
/// else copies go through the host.
void reach(cu::Context other);

/// The driver's name for the device.
std::string device_name(int device);
/// Seconds of each launch on the default stream, by the device's clock; launches until `seconds` have passed.
std::vector<double> times(int device, double seconds, const std::function<void()>& launch);
/// Seconds per launch in graphs of `launches` launches each, on the stream that is passed to `launch`: the mean of each
/// replay. The first launch on that stream is not captured.
std::vector<double> times_of_graphs(int device, double seconds, int launches,
                                    const std::function<void(void* stream)>& launch);

}  // namespace attune::runtime::cuda

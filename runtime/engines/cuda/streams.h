// runtime/engines/cuda/streams.h — attune's own streams, events that streams wait for, and copies between devices
#pragma once

#include <memory>

#include "runtime/engines/cuda/driver.h"

namespace attune::runtime::cuda {

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

}  // namespace attune::runtime::cuda
